// Checks a pickle before Python's fast reader gets it: that one allocates as much memory as a number in the file says,
// and hashes any key that the file builds, however long that takes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace arena {

// Throws TraceError, with the position, if the pickle is truncated, has a length or an index larger than its own size,
// a key of too many parts, or a number of too many bytes.
void check_pickle(const std::uint8_t* data, std::size_t size);

}  // namespace arena
