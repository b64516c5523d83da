#include "cudasim/api/capture.hpp"

#include <algorithm>
#include <utility>

#include "cudasim/api/contexts.hpp"

namespace cudasim {
namespace {

thread_local cu::CaptureMode thread_mode = cu::CaptureMode::kGlobal;

[[noreturn]] void invalidate(Capture& capture, Result code) {
  capture.invalid = true;
  throw Refusal{code};
}

void leave(Machine& m, const std::shared_ptr<Capture>& capture) {
  for (const Capture::Member& member : capture->members) member.stream->capture.reset();
  m.captures.erase(capture->id);
}

// Ends a capture without a graph.
void abandon(Machine& m, const std::shared_ptr<Capture>& capture, const Death& death) {
  leave(m, capture);
  if (capture->own_graph) destroy_graph(m, capture->graph, death);
}

cu::CaptureStatus status_of(const StreamRef& stream) {
  if (!stream->capture) return cu::CaptureStatus::kNone;
  return stream->capture->invalid ? cu::CaptureStatus::kInvalidated : cu::CaptureStatus::kActive;
}

Result capture_info(std::string_view name, cu::Stream handle, cu::CaptureStatus* status, std::uint64_t* id,
                    const std::function<void(const StreamRef&)>& more) {
  return enter(name, Need::kContext, [&](Call& call) {
    require(status != nullptr, kInvalidValue);
    const StreamRef stream = stream_of(call, handle);
    // The legacy stream cannot be used while a stream that it waits for is being captured.
    if (stream == stream->context->legacy && !call.machine.captures.empty()) {
      for (const StreamRef& other : streams_of(call.machine, *stream->context)) {
        require(!other->blocking() || !other->capture, kCaptureImplicit);
      }
    }
    *status = status_of(stream);
    if (stream->capture && id != nullptr) *id = stream->capture->id;
    if (stream->capture && more) more(stream);
    return kSuccess;
  });
}

Result begin_capture(Call& call, cu::Stream handle, cu::CaptureMode mode, const GraphRef& graph,
                     std::vector<NodeState*> dependencies) {
  require(cu::bits(mode) <= cu::bits(cu::CaptureMode::kRelaxed), kInvalidValue);
  const StreamRef stream = stream_of(call, handle);
  require(stream != call.context->legacy, kCaptureUnsupported);
  require(!stream->capture, kIllegalState);
  auto capture = std::make_shared<Capture>();
  capture->id = call.machine.next_id++;
  capture->mode = mode;
  capture->thread = this_thread();
  capture->origin = stream;
  capture->graph = graph;
  if (graph == nullptr) {
    capture->graph = std::make_shared<GraphState>();
    capture->graph->handle = call.machine.graphs.reserve(call.machine.settings.reuse);
    call.machine.graphs.add(capture->graph->handle, capture->graph);
  }
  capture->own_graph = graph == nullptr;
  capture->members.push_back({.stream = stream, .last = std::move(dependencies)});
  stream->capture = capture;
  call.machine.captures.emplace(capture->id, capture);
  return kSuccess;
}

// Returns the nodes that the next node of the stream depends on. Valid until something is queued in the stream.
void show_dependencies(const StreamRef& stream, const cu::GraphNode** dependencies, const cu::GraphEdgeData** edges,
                       std::size_t* count) {
  Capture::Member& member = *stream->capture->member(stream);
  member.shown.clear();
  for (const NodeState* node : member.last) member.shown.push_back(node->handle);
  member.edges.assign(member.shown.size(), {});
  if (dependencies != nullptr) *dependencies = member.shown.data();
  if (edges != nullptr) *edges = member.edges.data();
  if (count != nullptr) *count = member.shown.size();
}

void add_dependencies(std::vector<NodeState*>& known, const std::vector<NodeState*>& more) {
  for (NodeState* node : more) {
    if (std::find(known.begin(), known.end(), node) == known.end()) known.push_back(node);
  }
}

Result update_dependencies(cu::Stream handle, const cu::GraphNode* nodes, const cu::GraphEdgeData* edges,
                           std::size_t count, unsigned flags) {
  return enter("cuStreamUpdateCaptureDependencies", Need::kContext, [&](Call& call) {
    require(flags <= cu::bits(cu::CaptureDependencies::kSet), kInvalidValue);
    const StreamRef stream = stream_of(call, handle);
    require(stream->capture != nullptr, kIllegalState);
    require(!stream->capture->invalid, kIllegalState);
    check_edges(edges, count);
    const auto found = dependencies_of(call, *stream->capture->graph, nodes, count);
    std::vector<NodeState*>& last = stream->capture->member(stream)->last;
    if (flags == cu::bits(cu::CaptureDependencies::kSet)) last.clear();
    add_dependencies(last, found);
    return kSuccess;
  });
}

}  // namespace

Capture::Member* Capture::member(const StreamRef& stream) {
  for (Member& m : members) {
    if (m.stream == stream) return &m;
  }
  return nullptr;
}

void record_work(Call& call, const StreamRef& stream, Work work) {
  Capture& capture = *stream->capture;
  require(!capture.invalid, kCaptureInvalidated);
  work.after.clear();
  Capture::Member& member = *capture.member(stream);
  member.last = {&add_node(call.machine, *capture.graph, std::move(work), member.last)};
  member.work = ++capture.recorded;
}

CapturedMark mark_capture(const StreamRef& stream) {
  const Capture::Member& member = *stream->capture->member(stream);
  return {stream->capture, stream, member.work, member.last};
}

void drop_capture(Machine& m, const StreamRef& stream) {
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return;
  if (capture->origin == stream) {
    capture->invalid = true;
    abandon(m, capture, {});
    return;
  }
  if (!capture->member(stream)->is_joined()) capture->invalid = true;  // nothing can join it any more
  stream->capture.reset();
}

void join_capture(Call& call, const StreamRef& stream, const CapturedMark& mark) {
  Capture& capture = *mark.capture;
  require(call.machine.captures.contains(capture.id), kCapturedEvent);  // it has ended
  require(!capture.invalid, kCaptureInvalidated);
  if (stream->capture && stream->capture != mark.capture) invalidate(capture, kCaptureMerge);
  if (stream == stream->context->legacy) invalidate(capture, kCaptureImplicit);
  if (!stream->capture) {
    stream->capture = mark.capture;
    capture.members.push_back({.stream = stream, .work = capture.recorded});
  }
  Capture::Member& from = *capture.member(mark.stream);
  Capture::Member& to = *capture.member(stream);
  from.joined = std::max(from.joined, mark.work);
  add_dependencies(to.last, mark.nodes);
  to.work = ++capture.recorded;  // the waiting stream must now be joined, too
}

void invalidate_if_in_progress(const Machine& m, Capture& capture) {
  if (m.captures.contains(capture.id)) capture.invalid = true;
}

void refuse_capture(const StreamState& stream, Result code) {
  if (stream.capture) invalidate(*stream.capture, code);
}

void check_no_capture(Call& call, const ContextState& context) {
  bool any = false;
  for (const auto& [id, capture] : call.machine.captures) {
    for (const Capture::Member& member : capture->members) {
      if (member.stream->context.get() == &context) any = capture->invalid = true;
    }
  }
  require(!any, kCaptureUnsupported);
}

void check_safe_in_capture(Call& call) {
  if (thread_mode == cu::CaptureMode::kRelaxed) return;
  for (const auto& [id, capture] : call.machine.captures) {
    const bool mine = capture->thread == this_thread() && capture->mode != cu::CaptureMode::kRelaxed;
    const bool global = capture->mode == cu::CaptureMode::kGlobal && thread_mode == cu::CaptureMode::kGlobal;
    if (mine || global) invalidate(*capture, kCaptureUnsupported);
  }
}

void check_may_wait(Call& call, const StreamRef& stream) {
  refuse_capture(*stream, kCaptureUnsupported);
  check_safe_in_capture(call);
}

}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuStreamBeginCapture_v2(cu::Stream handle, cu::CaptureMode mode) {
  return enter("cuStreamBeginCapture", Need::kContext,
               [&](Call& call) { return begin_capture(call, handle, mode, nullptr, {}); });
}

CUDASIM_EXPORT Result cuStreamBeginCaptureToGraph(cu::Stream stream, cu::Graph handle,
                                                  const cu::GraphNode* dependencies, const cu::GraphEdgeData* edges,
                                                  std::size_t count, cu::CaptureMode mode) {
  return enter("cuStreamBeginCaptureToGraph", Need::kContext, [&](Call& call) {
    const GraphRef graph = graph_of(call, handle);
    check_edges(edges, count);
    return begin_capture(call, stream, mode, graph, dependencies_of(call, *graph, dependencies, count));
  });
}

CUDASIM_EXPORT Result cuStreamUpdateCaptureDependencies(cu::Stream stream, cu::GraphNode* dependencies,
                                                        std::size_t count, unsigned flags) {
  return update_dependencies(stream, dependencies, nullptr, count, flags);
}

CUDASIM_EXPORT Result cuStreamUpdateCaptureDependencies_v2(cu::Stream stream, cu::GraphNode* dependencies,
                                                           const cu::GraphEdgeData* edges, std::size_t count,
                                                           unsigned flags) {
  return update_dependencies(stream, dependencies, edges, count, flags);
}

CUDASIM_EXPORT Result cuStreamEndCapture(cu::Stream handle, cu::Graph* graph) {
  return enter("cuStreamEndCapture", Need::kContext, [&](Call& call) {
    require(graph != nullptr, kInvalidValue);
    *graph = nullptr;
    const StreamRef stream = stream_of(call, handle);
    const std::shared_ptr<Capture> capture = stream->capture;
    require(capture != nullptr, kIllegalState);
    if (capture->origin != stream) invalidate(*capture, kCaptureUnmatched);
    const bool my_thread = capture->mode == cu::CaptureMode::kRelaxed || capture->thread == this_thread();
    if (!my_thread) invalidate(*capture, kCaptureWrongThread);
    bool unjoined = false;
    for (const Capture::Member& member : capture->members) {
      unjoined |= member.stream != stream && !member.is_joined();
    }
    if (capture->invalid || unjoined) {
      abandon(call.machine, capture, death_by(call));
      return capture->invalid ? kCaptureInvalidated : kCaptureUnjoined;
    }
    leave(call.machine, capture);
    *graph = capture->graph->handle;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuStreamIsCapturing(cu::Stream stream, cu::CaptureStatus* status) {
  return capture_info("cuStreamIsCapturing", stream, status, nullptr, {});
}

CUDASIM_EXPORT Result cuStreamGetCaptureInfo(cu::Stream stream, cu::CaptureStatus* status, std::uint64_t* id) {
  return capture_info("cuStreamGetCaptureInfo", stream, status, id, {});
}

CUDASIM_EXPORT Result cuStreamGetCaptureInfo_v2(cu::Stream stream, cu::CaptureStatus* status, std::uint64_t* id,
                                                cu::Graph* graph, const cu::GraphNode** dependencies,
                                                std::size_t* count) {
  return cuStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, nullptr, count);
}

CUDASIM_EXPORT Result cuStreamGetCaptureInfo_v3(cu::Stream stream, cu::CaptureStatus* status, std::uint64_t* id,
                                                cu::Graph* graph, const cu::GraphNode** dependencies,
                                                const cu::GraphEdgeData** edges, std::size_t* count) {
  return capture_info("cuStreamGetCaptureInfo", stream, status, id, [&](const StreamRef& captured) {
    if (graph != nullptr) *graph = captured->capture->graph->handle;
    show_dependencies(captured, dependencies, edges, count);
  });
}

CUDASIM_EXPORT Result cuThreadExchangeStreamCaptureMode(cu::CaptureMode* mode) {
  return enter("cuThreadExchangeStreamCaptureMode", Need::kDriver, [&](Call&) {
    require(mode != nullptr && cu::bits(*mode) <= cu::bits(cu::CaptureMode::kRelaxed), kInvalidValue);
    std::swap(*mode, thread_mode);
    return kSuccess;
  });
}
