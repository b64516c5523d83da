// Copies and fills that take no memory of the host for zeros where nobody ever wrote: a trace of many gigabytes is replayed,
// and its memory moved, with hardly a page behind it.
#pragma once

#include "cudasim/machine/submit.hpp"

namespace cudasim {

// As memmove and memset do it. The pieces are at least as long.
void copy_sparsely(const Piece& to, const Piece& from, std::uint64_t size);
void fill_sparsely(const Piece& to, unsigned char value);

}  // namespace cudasim
