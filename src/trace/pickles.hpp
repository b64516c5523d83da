// Looks at a pickle before Python's fast reader does, which takes as much memory as a number in the file says.
#pragma once

#include <cstddef>
#include <cstdint>

namespace arena {

// Throws TraceError, with the place, if a pickle is cut, or names a length or an index that is beyond its own size.
void check_pickle(const std::uint8_t* data, std::size_t size);

}  // namespace arena
