#include "core/scopes/graphs.hpp"

#include <iterator>
#include <utility>

#include "core/scopes/entered.hpp"

namespace arena {
namespace {

thread_local EnteredByThread<GraphMemory> entered_graphs;

}  // namespace

std::optional<GraphMemory::Taken> GraphMemory::take(Bytes size, Order order) {
  auto best = pieces_.end();
  for (auto it = pieces_.begin(); it != pieces_.end(); ++it) {
    if (!it->second.order.precedes(order) || it->second.size < size) continue;
    if (best == pieces_.end() || it->second.size < best->second.size) best = it;
  }
  if (best == pieces_.end()) return std::nullopt;
  return take_from(best, best->first, size);
}

std::optional<GraphMemory::Taken> GraphMemory::take_at(Offset offset, Bytes size) {
  auto it = pieces_.upper_bound(offset);
  if (it == pieces_.begin()) return std::nullopt;
  --it;
  if (it->first + it->second.size < offset + size) return std::nullopt;
  return take_from(it, offset, size);
}

GraphMemory::Taken GraphMemory::take_from(std::map<Offset, Piece>::iterator piece, Offset offset, Bytes size) {
  const Offset begin = piece->first, end = begin + piece->second.size;
  Piece rest = piece->second;
  pieces_.erase(piece);
  rest.size = offset - begin;
  if (rest.size > 0) pieces_.emplace(begin, rest);
  rest.size = end - (offset + size);
  if (rest.size > 0) pieces_.emplace(offset + size, rest);
  free_ -= size;
  return {offset, rest.chunk};
}

void GraphMemory::take_over(GraphMemory& from) {
  chunks_.insert(chunks_.end(), from.chunks_.begin(), from.chunks_.end());
  for (const auto& [offset, piece] : from.pieces_) {
    give(offset, piece.size, {piece.order.stream, kEarlierCapture}, piece.chunk);
  }
  from.clear();
}

void GraphMemory::give(Offset offset, Bytes size, Order order, Offset chunk) {
  free_ += size;
  Piece piece{size, order, chunk};
  const auto fits = [&](const Piece& other) { return other.order == order && other.chunk == chunk; };
  auto after = pieces_.lower_bound(offset);
  if (after != pieces_.end() && after->first == offset + size && fits(after->second)) {
    piece.size += after->second.size;
    after = pieces_.erase(after);
  }
  if (after != pieces_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second.size == offset && fits(before->second)) {
      before->second.size += piece.size;
      return;
    }
  }
  pieces_.emplace_hint(after, offset, piece);
}

void GraphMemory::clear() {
  chunks_.clear();
  pieces_.clear();
  free_ = 0;
}

std::shared_ptr<GraphMemory> current_graph(std::uint64_t owner) { return entered_graphs.last_of(owner); }

void enter_graph(std::uint64_t owner, std::shared_ptr<GraphMemory> graph) {
  entered_graphs.add(owner, std::move(graph));
}

}  // namespace arena
