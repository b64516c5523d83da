// What copies and fills touch, and what they do when their stream gets to them.
#include <algorithm>
#include <cstring>

#include "cudasim/api/copies.hpp"
#include "cudasim/machine/sparse.hpp"

namespace cudasim {
namespace {

bool pieces_of(const Copy& copy, const Side& side, bool write, std::vector<Piece>& pieces) {
  char* staged = !write && copy.staged ? copy.staged->data() : nullptr;
  bool found = true;
  each_row(copy, side, [&](std::uint64_t offset) {
    const Effect row = row_effect(copy, side, write, offset);
    if (side.managed) {
      found = found && locate(machine(), row, &pieces);
    } else {
      pieces.push_back({staged != nullptr ? staged + offset : reinterpret_cast<char*>(row.address), copy.width});
    }
  });
  return found;
}

void add_effects(Work& work, const Copy& copy, const Side& side, bool write) {
  if (!side.managed) return;
  each_row(copy, side, [&](std::uint64_t offset) { work.effects.push_back(row_effect(copy, side, write, offset)); });
}

// Copies `size` bytes, which are at the place `at` of all bytes of the copy.
void deliver(const Copy& copy, const Piece& to, const Piece& from, std::uint64_t size, std::uint64_t at) {
  if (copy.substitute == nullptr) return copy_sparsely(to, from, size);
  const Substitute& instead = *copy.substitute;
  if (!instead.bytes.empty()) {
    std::memcpy(to.data, instead.bytes.data() + at, size);
    return;
  }
  const auto part = [](const Piece& piece, std::uint64_t begin, std::uint64_t end) {
    return Piece{piece.data + begin, end - begin, piece.store};
  };
  std::uint64_t done = 0;
  auto zero = std::upper_bound(instead.zeros.begin(), instead.zeros.end(), at,
                               [](std::uint64_t place, const auto& zeros) { return place < zeros.second; });
  for (; zero != instead.zeros.end() && zero->first < at + size; ++zero) {
    const std::uint64_t begin = std::max(zero->first, at) - at, end = std::min(zero->second - at, size);
    copy_sparsely(part(to, done, begin), part(from, done, begin), begin - done);
    fill_sparsely(part(to, begin, end), 0);
    done = end;
  }
  copy_sparsely(part(to, done, size), part(from, done, size), size - done);
}

void fill_piece(const Piece& piece, unsigned value, unsigned unit) {
  if (unit == 1 || value == 0) return fill_sparsely(piece, static_cast<unsigned char>(value));
  for (std::uint64_t at = 0; at < piece.size; at += unit) std::memcpy(piece.data + at, &value, unit);
}

Result run_fill(const Fill& fill, const std::shared_ptr<const ContextState>& context) {
  std::vector<Piece> pieces;
  {
    const std::lock_guard lock(machine().mutex);
    if (!machine().initialised) return kSuccess;
    for (std::uint64_t y = 0; y < fill.rows; ++y) {
      if (!locate(machine(), row_effect(fill, y, context), &pieces)) return kIllegalAddress;
    }
  }
  for (const Piece& piece : pieces) fill_piece(piece, fill.value, fill.unit);
  return kSuccess;
}

}  // namespace

Effect row_effect(const Copy& copy, const Side& side, bool write, std::uint64_t offset) {
  return {.address = side.address + offset,
          .size = copy.width,
          .write = write,
          .copy = true,
          .context = write ? copy.dst_context : copy.src_context};
}

Effect row_effect(const Fill& fill, std::uint64_t row, const std::shared_ptr<const ContextState>& context) {
  return {
      .address = fill.address + row * fill.pitch, .size = fill.row, .write = true, .copy = false, .context = context};
}

void join_rows(Copy& copy) {
  const auto joined = [&](const Side& side) { return copy.height == 1 || side.pitch == copy.width; };
  if (!joined(copy.dst) || !joined(copy.src)) return;
  copy.width *= copy.height;
  copy.height = 1;
  const auto stacked = [&](const Side& side) { return copy.depth == 1 || side.slice == copy.width; };
  if (!stacked(copy.dst) || !stacked(copy.src)) return;
  copy.width *= copy.depth;
  copy.depth = 1;
}

Result run_copy(const Copy& copy) {
  std::vector<Piece> to, from;
  {
    const std::lock_guard lock(machine().mutex);
    if (!machine().initialised) return kSuccess;
    if (!pieces_of(copy, copy.dst, true, to) || !pieces_of(copy, copy.src, false, from)) return kIllegalAddress;
  }
  std::uint64_t at = 0;
  for (std::size_t i = 0, j = 0; i < to.size() && j < from.size();) {
    const std::uint64_t size = std::min(to[i].size, from[j].size);
    deliver(copy, to[i], from[j], size, at);
    at += size;
    to[i].data += size;
    from[j].data += size;
    if ((to[i].size -= size) == 0) ++i;
    if ((from[j].size -= size) == 0) ++j;
  }
  return kSuccess;
}

Work copy_work(std::string_view name, Copy copy, const ContextRef& context) {
  if (copy.dst_context == nullptr) copy.dst_context = context;
  if (copy.src_context == nullptr) copy.src_context = context;
  join_rows(copy);
  Work work{.name = name, .bytes = copy.size(), .node = cu::GraphNodeType::kMemcpy};
  add_effects(work, copy, copy.dst, true);
  add_effects(work, copy, copy.src, false);
  work.run = [copy] { return run_copy(copy); };
  return work;
}

Work fill_work(std::string_view name, const Fill& fill, const ContextRef& context) {
  Work work{.name = name, .bytes = fill.row * fill.rows, .node = cu::GraphNodeType::kMemset};
  for (std::uint64_t y = 0; y < fill.rows; ++y) work.effects.push_back(row_effect(fill, y, context));
  work.run = [fill, context = std::shared_ptr<const ContextState>(context)] { return run_fill(fill, context); };
  return work;
}

}  // namespace cudasim
