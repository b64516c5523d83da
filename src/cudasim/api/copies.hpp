// Copies and fills as work: what they touch, and what they do when the stream gets to them. Shared by the calls that queue
// them and by the nodes of graphs.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "cudasim/machine/machine.hpp"
#include "cudasim/machine/submit.hpp"

namespace cudasim {

// One side of a copy: memory that the driver manages, or pageable memory of the program. Rows are `pitch` bytes apart,
// and slices `slice` bytes.
struct Side {
  std::uint64_t address = 0;
  bool managed = false;
  std::uint64_t pitch = 0;
  std::uint64_t slice = 0;
};

// What a copy delivers instead of bytes that it must not, by their place in the copied bytes, row after row.
struct Substitute {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> zeros;  // begin and end, in order
  std::vector<char> bytes;                                     // if not empty, all that is delivered
};

struct Copy {
  Side dst{}, src{};
  std::uint64_t width = 0;  // bytes of a row
  std::uint64_t height = 1;
  std::uint64_t depth = 1;
  std::shared_ptr<std::vector<char>> staged{};  // what was in the pageable source when the call was made
  std::shared_ptr<const ContextState> dst_context{};
  std::shared_ptr<const ContextState> src_context{};
  std::shared_ptr<const Substitute> substitute{};

  std::uint64_t size() const { return width * height * depth; }
};

// A fill of `rows` rows with a value of `unit` bytes.
struct Fill {
  std::uint64_t address = 0;
  std::uint64_t pitch = 0;
  std::uint64_t row = 0;  // bytes
  std::uint64_t rows = 1;
  unsigned value = 0;
  unsigned unit = 1;  // bytes: 1, 2 or 4
};

// Rows that follow each other without a gap on both sides are one: most copies are.
void join_rows(Copy& copy);
// Calls `function(offset)` with the place of each row on a side.
template <typename Function>
void each_row(const Copy& copy, const Side& side, const Function& function) {
  for (std::uint64_t z = 0; z < copy.depth; ++z) {
    for (std::uint64_t y = 0; y < copy.height; ++y) function(z * side.slice + y * side.pitch);
  }
}

// Sides as their addresses say. `size` is in one row.
Copy unified_copy(Call& call, std::uint64_t dst, std::uint64_t src, std::uint64_t size);
// Reads a description of a copy in two or three dimensions. Throws Refusal.
Copy described_copy(Call& call, const cu::Memcpy2D& given);
Copy described_copy(Call& call, const cu::Memcpy3D& given);
// Checks a fill: alignment, and that it ends within all addresses. Throws Refusal.
void check_fill(const Fill& fill);

// Pageable memory is not staged here: it is read when the work runs.
Work copy_work(std::string_view name, Copy copy, const ContextRef& context);
Result run_copy(const Copy& copy);
Work fill_work(std::string_view name, const Fill& fill, const ContextRef& context);

// Whole calls: queue, and wait as NVIDIA documents.
Result queue_copy(Call& call, Copy copy, cu::Stream handle, bool synchronous);
Result queue_fill(Call& call, const Fill& fill, cu::Stream handle, bool synchronous);

}  // namespace cudasim
