// The words of the core, and the equations that hold between them.
//
//   device   one GPU, or one simulated device
//   granule  the unit in which physical memory is mapped; of plain segments, the unit in which they are taken
//   handle   one piece of physical memory, of one or more granules; `spare` while it is mapped nowhere
//   segment  a range of addresses that the arena manages: with virtual memory management one for all, backed by
//            handles as needed; without, one plain allocation, which is a handle that never moves
//   place    where something lies, as an offset; all segments lie in one range of offsets, apart from each other
//   block    a piece of a segment in a user's hands; the free pieces between blocks are gaps
//   alias    a second address of a handle; a granule is active at the address through which it is used, inactive at others
//   touched  a granule that some block overlaps; a handle is idle while none of its granules is
//
//   requested <= live <= reserved <= cap
//   reserved = requested + rounding + pending + captured + releasable + stranded + spare        (the account)
//     pending     idle handles that a stream may still be using, as far as the host knows
//     captured    freed, but kept for a captured graph, which will use it at every launch
//     releasable  the other idle handles: trim() would return them
//     stranded    what is free in handles that are not idle; of this, `compactable`: untouched granules that re-backing
//                 would set free
//
// Sizes and offsets are bytes, unless a name says granules.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace arena {

using Bytes = std::uint64_t;
using Offset = std::uint64_t;
using Granules = std::uint64_t;
using Line = std::uint32_t;  // a source line of the program, numbered by the caller; 0 if unknown

enum class Moving : std::uint8_t {
  kForbidden,
  kAllowed
};  // of live data, to other physical memory at the same address

// Granules [begin, end), counted from offset 0.
struct Span {
  Granules begin = 0;
  Granules end = 0;
  Granules count() const { return end - begin; }
  bool overlaps(Span other) const { return begin < other.end && other.begin < end; }
};

inline constexpr Bytes kAlignment = 512;  // of every block: what CuPy promises its users

constexpr Bytes round_up(Bytes n, Bytes unit) { return (n + unit - 1) / unit * unit; }
constexpr Bytes round_down(Bytes n, Bytes unit) { return n / unit * unit; }

inline constexpr Bytes kLargestRequest = Bytes{1} << 46;
// Of a block for a request.
constexpr Bytes block_size(Bytes request) {
  return std::max(kAlignment, round_up(std::min(request, kLargestRequest), kAlignment));
}

// The same for a power of two that only the driver knows: without a division, which would take longer than all the rest.
class GranuleSize {
 public:
  explicit constexpr GranuleSize(Bytes size) : size_(size), bits_(std::countr_zero(size)) {}
  constexpr Bytes bytes() const { return size_; }
  constexpr Granules count(Bytes n) const { return n >> bits_; }
  constexpr Bytes up(Bytes n) const { return (n + size_ - 1) & ~(size_ - 1); }
  constexpr Bytes down(Bytes n) const { return n & ~(size_ - 1); }
  constexpr Bytes rest(Bytes n) const { return n & (size_ - 1); }

 private:
  Bytes size_;
  int bits_;
};

}  // namespace arena
