// Requests of streams that are being captured, and the memory of graphs.
#include <utility>

#include "core/arena/arena.hpp"
#include "core/arena/trimming.hpp"

namespace arena {

// A request on a stream that is being captured belongs to a graph: the one that its thread entered, or the unclaimed
// one.
void Arena::note_capture(HeapRequest& request) {
  Streams& streams = heap_.streams;
  if (!request.capture) {
    streams.note_capture(request.index, nullptr);
    const Streams::ActiveCall active(streams, request.index);
    if (!streams.wants_event(request.index)) return;
    ignore_errors([&] {
      const RelaxedCapture relaxed(heap_.device);
      streams.record_wanted_event(request.index);
    });
    return;
  }
  if (!request.graph) {
    if (!heap_.unclaimed) heap_.unclaimed = heap_.graphs.emplace_back(std::make_shared<GraphMemory>());
    request.graph = heap_.unclaimed;
  }
  streams.note_capture(request.index, request.graph.get());
}

// Polls now, because nothing can be polled during the capture, and it can use idle memory. Polling the whole context
// would invalidate an unknown capture, so that is done only if much may be idle, such as the memory of released graphs.
std::shared_ptr<GraphMemory> Arena::begin_graph(GraphMemory* earlier) {
  constexpr Granules kPart = 4;  // of the cap
  const Lock held = lock();
  ignore_errors([&] {
    const RelaxedCapture relaxed(heap_.device);
    const bool is_much = kPart * heap_.backing->pending() > heap_.limits.cap();
    heap_.backing->poll(is_much ? EventScope::kContexts : EventScope::kStreams);
  });
  const auto graph = heap_.graphs.emplace_back(std::make_shared<GraphMemory>());
  if (earlier != nullptr) heap_.take_over(*earlier, graph);
  enter_graph(heap_.id, graph);
  return graph;
}

std::vector<Arena::GraphBlock> Arena::live_in(const GraphMemory& graph) {
  const Lock held = lock(When::kAlways);
  std::vector<GraphBlock> found;
  heap_.blocks.each([&](const Block& block) {
    if (!block.live || block.lost || block.graph.get() != &graph) return;
    found.push_back({.address = block.address,
                     .offset = block.offset,
                     .size = block.size,
                     .requested = block.requested,
                     .stream = block.stream,
                     .cu_stream = block.cu_stream,
                     .capture = block.capture,
                     .line = block.line});
  });
  return found;
}

std::vector<std::pair<std::uint64_t, Bytes>> Arena::ranges_of(const GraphMemory& graph) {
  const Lock held = lock(When::kAlways);
  std::vector<std::pair<std::uint64_t, Bytes>> found;
  for (const GraphMemory::Chunk& chunk : graph.chunks()) {
    found.emplace_back(heap_.backing->address_of(chunk.offset), chunk.size);
  }
  return found;
}

// Its stream may be gone by now, so the block counts as one of the legacy stream, except for its order in the graph.
Block& Arena::revive(const std::shared_ptr<GraphMemory>& graph, const GraphBlock& block) {
  check_process();
  const Lookup lookup = look_up(block.requested, nullptr);
  const Lock held = lock();
  HeapRequest request = resolve({.size = block.requested, .line = block.line}, lookup);
  request.scope = nullptr;
  request.graph = graph;
  request.rounded = block.size;
  Block* revived = heap_.take_from_graph_at(request, block.offset, block.capture);
  if (revived == nullptr) {
    throw UsageError("a block of a graph cannot be live again: its memory is in use, or was released");
  }
  revived->stream = block.stream;
  revived->cu_stream = block.cu_stream;
  return *revived;
}

void Arena::end_graph(GraphMemory& graph) {
  graph.end();
  if (is_inherited()) return;
  const Lock held = lock(When::kAlways);
  heap_.streams.note_end_of_capture(&graph);
}

void Arena::release_graph(GraphMemory& graph) {
  graph.end();
  if (is_inherited()) return;
  Lock held = lock(When::kAlways);
  heap_.streams.note_end_of_capture(&graph);
  if (heap_.release(graph) && heap_.is_over_limit()) trim_over_limit(heap_, held);
}

void Arena::release_graphs() {
  Lock held = lock(When::kAlways);
  if (!heap_.unclaimed) return;
  heap_.streams.note_end_of_capture(heap_.unclaimed.get());
  const bool is_released = heap_.release(*std::exchange(heap_.unclaimed, nullptr));
  if (is_released && heap_.is_over_limit()) trim_over_limit(heap_, held);
}

}  // namespace arena
