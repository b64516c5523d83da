// Requests of streams that are being captured, and the memory of graphs: where it comes from, and when it goes back.
#include <algorithm>
#include <utility>

#include "core/arena.hpp"

namespace arena {

// Nothing may be unmapped, no event asked for, and no work outside waited for: memory that was used and freed by the same
// stream will do, or what is known to be done, or new memory.
Block& Arena::allocate_in_capture(const Request& wanted, const Demand& demand, Lock& held) {
  std::optional<Place> place = find_backed(wanted.rounded);
  if (!place || must_wait(wanted, place->offset)) place = find_unshared(wanted);
  if (place) return hand_out(place->offset, wanted);
  Demand fresh = demand;
  fresh.may_unmap = [] { return false; };
  fresh.device_free = device_free();
  if (device_.can_relax()) {
    if (const std::optional<Offset> offset = back_anew(fresh, held)) return hand_out(*offset, wanted);
  }
  const Granules most = limit_with(device_free()), in_use = backing_->reserved() - backing_->spare();
  const auto left = [&](Granules used) { return (most > used ? most - used : 0) * backing_->granule(); };
  const Granules movable =
      device_.can_relax() ? backing_->compactable() : 0;  // before the capture: new memory after it
  fail(wanted, held, kCapturing, {.now = left(in_use), .by_moving = left(in_use - movable)});
}

// A request of a stream that is being captured is for a graph, if not for one that its thread has entered, then for one
// that nobody has a name for.
void Arena::note_capture(Request& wanted) {
  if (!wanted.capture) {
    streams_.note_capture(wanted.stream, nullptr);
    const Streams::Visit visit(streams_, wanted.stream);
    if (streams_.is_asked(wanted.stream)) answer(wanted.stream);
    return;
  }
  if (!wanted.graph) {
    if (!unclaimed_) unclaimed_ = graphs_.emplace_back(std::make_shared<GraphMemory>());
    wanted.graph = unclaimed_;
  }
  streams_.note_capture(wanted.stream, wanted.graph.get());
}

// Others wanted to know how far a stream is, which could not be named then.
void Arena::answer(StreamIndex stream) {
  quietly([&] {
    const Relaxed relaxed(device_);
    streams_.answer(stream);
  });
}

// What the same stream freed in the same capture: the graph runs it in that order.
Block* Arena::take_from_graph(const Request& wanted) {
  const std::optional<GraphMemory::Taken> taken =
      wanted.graph->take(wanted.rounded, {wanted.stream, wanted.capture.value_or(0)});
  if (!taken) return nullptr;
  ++hits_;
  return &new_block(taken->offset, wanted, taken->chunk);
}

// A block is a graph's. If it does not lie in a chunk yet, its place becomes one.
// One that was released since the request was made gets none: the block is the program's own.
void Arena::give_chunk(Block& block, const Request& wanted, Offset chunk) {
  if (std::find(graphs_.begin(), graphs_.end(), wanted.graph) == graphs_.end()) {
    block.others.push_back(Streams::kEverything);
    return;
  }
  block.graph = wanted.graph;
  block.capture = wanted.capture.value_or(0);
  block.chunk = chunk == kNoChunk ? block.offset : chunk;
  if (chunk != kNoChunk) return;
  wanted.graph->add({block.offset, block.size});
  backing_->pin(backing_->span_of(block.offset, block.size));
}

// What other streams used too cannot be ordered in a graph: no request gets it.
void Arena::give_to_graph(Block& block) {
  const StreamIndex stream = block.others.empty() ? block.stream : Streams::kEverything;
  block.graph->give(block.offset, block.size, {stream, block.capture}, block.chunk);
}

// What is idle by now is of use to the capture, in which nothing can be asked. It is worth to ask the whole context, which a
// capture unknown here would not survive, only if much may be: the memory of graphs that were released.
std::shared_ptr<GraphMemory> Arena::begin_graph() {
  constexpr Granules kMuch = 4;
  const Lock held = lock();
  quietly([&] {
    const Relaxed relaxed(device_);
    backing_->poll(kMuch * backing_->pending() > in_granules(settings_.cap) ? Means::kContexts : Means::kStreams);
  });
  const auto graph = graphs_.emplace_back(std::make_shared<GraphMemory>());
  enter_graph(id_, graph);
  return graph;
}

void Arena::end_graph(GraphMemory& graph) {
  graph.end();
  if (is_inherited()) return;
  const Lock held = lock(When::kAlways);
  streams_.note_end_of_capture(&graph);
}

void Arena::release_graph(GraphMemory& graph) {
  graph.end();
  if (is_inherited()) return;
  Lock held = lock(When::kAlways);
  streams_.note_end_of_capture(&graph);
  release(graph, held);
}

void Arena::release_graphs() {
  Lock held = lock(When::kAlways);
  if (!unclaimed_) return;
  streams_.note_end_of_capture(unclaimed_.get());
  release(*std::exchange(unclaimed_, nullptr), held);
}

// A launch may be under way, in any stream: what was the graph's is used again when all that runs now is done. Blocks that
// the program still has are its own from now on.
void Arena::release(GraphMemory& graph, Lock& held) {
  const auto is_it = [&](const auto& other) { return other.get() == &graph; };
  const auto it = std::find_if(graphs_.begin(), graphs_.end(), is_it);
  if (it == graphs_.end()) return;
  const std::shared_ptr<GraphMemory> kept = *it;
  graphs_.erase(it);
  const Marks marks(streams_.mark(Streams::kEverything));
  blocks_.each([&](Block& block) {
    if (block.graph.get() != &graph) return;
    backing_->touch(backing_->span_of(block.offset, block.size));
    block.graph = nullptr;
    block.others.push_back(Streams::kEverything);
  });
  for (const GraphMemory::Chunk& chunk : graph.chunks()) {
    const Span span = backing_->span_of(chunk.offset, chunk.size);
    backing_->unpin(span);
    backing_->leave(span, marks);
  }
  for (const auto& [offset, piece] : graph.pieces()) gaps_.add({offset, offset + piece.size}, marks);
  graph.clear();
  set_fronts();
  check_if_told();
  if (is_over_limit()) {
    const Relaxed relaxed(device_);
    trim_to(closed_ ? 0 : settings_.reserve, held, false);
  }
}

}  // namespace arena
