// Copies and fills that use no host memory for zeros in places that were never written: a trace of many gigabytes can
// be replayed, and its memory moved, with hardly any host memory.
#pragma once

#include "cudasim/machine/submit.hpp"

namespace cudasim {

// Like memmove and memset. The pieces must be at least `size` bytes long.
void copy_sparsely(const Piece& to, const Piece& from, std::uint64_t size);
void fill_sparsely(const Piece& to, unsigned char value);

}  // namespace cudasim
