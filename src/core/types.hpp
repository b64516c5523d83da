// The words of the core, and the equations that hold between them.
//
//   device   one GPU, or one simulated device
//   granule  the unit in which physical memory is mapped
//   handle   one piece of physical memory, of one or more granules; `spare` while it is mapped nowhere
//   segment  the range of addresses that the arena manages; a place in it is an offset from its beginning
//   block    a piece of the segment in a user's hands; the free pieces between blocks are gaps
//   touched  a granule that some block overlaps
//
//   requested <= live <= reserved <= cap
//   reserved = requested + rounding + pending + releasable + stranded + spare        (the account)
//
// Sizes and offsets are bytes, unless a name says granules.
#pragma once

#include <cstdint>

namespace arena {

using Bytes = std::uint64_t;
using Offset = std::uint64_t;

inline constexpr Bytes kAlignment = 512;  // of every block: what CuPy promises its users

constexpr Bytes round_up(Bytes n, Bytes unit) { return (n + unit - 1) / unit * unit; }
constexpr Bytes round_down(Bytes n, Bytes unit) { return n / unit * unit; }

}  // namespace arena
