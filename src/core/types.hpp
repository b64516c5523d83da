// The terms of the core, and the equations that hold between them.
//
//   device   one GPU, or one simulated device
//   granule  the unit in which physical memory is mapped; for plain segments, the unit of their size
//   handle   one piece of physical memory, of one or more granules; `spare` while it is not mapped
//   segment  a range of addresses that the arena manages: with virtual memory management a single one, backed by
//            handles as needed; otherwise one plain allocation, which is a handle that never moves
//   place    an offset; all segments share one range of offsets and do not overlap
//   block    an allocated piece of a segment; the free pieces between blocks are gaps
//   alias    a second address of a handle; a granule is active at the address in use and inactive at its others
//   touched  a granule that overlaps a block; a handle is idle while none of its granules is touched
//
//   requested <= live <= reserved <= cap
//   reserved = requested + rounding + pending + captured + releasable + stranded + spare        (the account)
//     pending     idle handles that a stream may still be using, as far as the host knows
//     captured    freed, but kept for a captured graph, which uses it at every launch
//     releasable  the other idle handles: trim() would return them
//     stranded    free memory in handles that are not idle; `compactable` is the part of it in untouched granules that
//                 re-backing would free
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
// Where a request comes from, numbered by the caller: from kFirstLine on, a source line of the program; below, only the
// framework that passed the request on; 0 if nothing is known. Blocks with a line remember their age.
using Line = std::uint32_t;
inline constexpr Line kFirstLine = 16;

// Whether live data may be moved to other physical memory, at the same address.
enum class Moving : std::uint8_t { kForbidden, kAllowed };

// Granules [begin, end), counted from offset 0.
struct Span {
  Granules begin = 0;
  Granules end = 0;
  Granules count() const { return end - begin; }
  bool overlaps(Span other) const { return begin < other.end && other.begin < end; }
};

inline constexpr Bytes kAlignment = 512;  // of every block, as CuPy guarantees

constexpr Bytes round_up(Bytes n, Bytes unit) { return (n + unit - 1) / unit * unit; }
constexpr Bytes round_down(Bytes n, Bytes unit) { return n / unit * unit; }

inline constexpr Bytes kLargestRequest = Bytes{1} << 46;
// The size of the block for a request.
constexpr Bytes block_size(Bytes request) {
  return std::max(kAlignment, round_up(std::min(request, kLargestRequest), kAlignment));
}

// Rounding to the granule size, a power of two known only at run time, without a division: that would be the slowest
// part of a hit.
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
