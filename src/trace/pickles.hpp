// Looks at a pickle before Python's fast reader does, which takes as much memory as a number in the file says, and as
// much time as it takes to hash what the file makes a key.
#pragma once

#include <cstddef>
#include <cstdint>

namespace arena {

// Throws TraceError, with the place, if a pickle is cut, names a length or an index that is beyond its own size, or has a
// key of many parts or a number of many bytes.
void check_pickle(const std::uint8_t* data, std::size_t size);

}  // namespace arena
