#include "cudasim/machine/sparse.hpp"

#include <algorithm>
#include <cstring>

namespace cudasim {
namespace {

constexpr std::uint64_t kWhole = 64 << 10;  // up to this size, writing everything is cheaper than finding the holes

enum class Part { kHole, kData };

// Calls `function(begin, end, part)` for each part of a piece that was written to, and for each hole between them.
// Memory of the program counts as written to.
template <class Function>
void each_part(const Piece& piece, std::uint64_t size, const Function& function) {
  if (piece.store == nullptr) return function(std::uint64_t{0}, size, Part::kData);
  const auto offset = static_cast<std::uint64_t>(piece.data - piece.store->data(0));
  for (std::uint64_t at = 0; at < size;) {
    const auto [begin, end] = piece.store->next_touched(offset + at, offset + size);
    if (begin - offset > at) function(at, begin - offset, Part::kHole);
    if (end > begin) function(begin - offset, end - offset, Part::kData);
    at = end - offset;
  }
}

bool is_zero(const char* data, std::uint64_t size) {
  return size == 0 || (data[0] == 0 && std::memcmp(data, data + 1, size - 1) == 0);
}

void clear(const Piece& to, std::uint64_t size) {
  each_part(to, size, [&](std::uint64_t begin, std::uint64_t end, Part part) {
    if (part == Part::kData) std::memset(to.data + begin, 0, end - begin);
  });
}

void write(const Piece& to, const char* from, std::uint64_t size) {
  each_part(to, size, [&](std::uint64_t begin, std::uint64_t end, Part part) {
    while (begin < end) {
      const bool is_data = part == Part::kData;
      const std::uint64_t stop = is_data ? end : std::min(end, begin + kPage);
      if (is_data || !is_zero(from + begin, stop - begin)) std::memcpy(to.data + begin, from + begin, stop - begin);
      begin = stop;
    }
  });
}

}  // namespace

void copy_sparsely(const Piece& to, const Piece& from, std::uint64_t size) {
  const bool overlap = to.data < from.data + size && from.data < to.data + size;
  if (size <= kWhole || overlap) {
    std::memmove(to.data, from.data, size);
    return;
  }
  each_part(from, size, [&](std::uint64_t begin, std::uint64_t end, Part part) {
    const Piece target{to.data + begin, end - begin, to.store};
    part == Part::kData ? write(target, from.data + begin, target.size) : clear(target, target.size);
  });
}

void fill_sparsely(const Piece& to, unsigned char value) {
  if (value == 0 && to.size > kWhole) return clear(to, to.size);
  std::memset(to.data, value, to.size);
}

}  // namespace cudasim
