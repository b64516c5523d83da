#include "cudasim/api/capture.hpp"

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

std::shared_ptr<GraphState> graph_of(Call& call, cu::Graph handle) {
  for (const auto& [id, capture] : call.machine.captures) require(capture->handle != handle, kInvalidValue);
  auto graph = find_live(call, call.machine.graphs, handle);
  require(graph != nullptr, kInvalidValue);
  return graph;
}

Result instantiate(Call& call, cu::GraphExec* exec, cu::Graph handle, std::uint64_t flags) {
  require(exec != nullptr && flags == 0, kInvalidValue);
  const auto graph = graph_of(call, handle);
  *exec = call.machine.graph_execs.reserve(call.machine.settings.reuse);
  call.machine.graph_execs.add(*exec, std::make_shared<GraphState>(*graph));
  return kSuccess;
}

// A launch does not check addresses: work on memory that is gone faults when the device gets to it.
void fault_if_gone(Call& call, cu::GraphExec exec, Work& work) {
  for (const Effect& effect : work.effects) {
    if (locate(call.machine, effect, nullptr)) continue;
    Finding finding;
    finding.kind = "graph memory gone";
    finding.call = call.name;
    finding.handle = reinterpret_cast<std::uint64_t>(exec);
    finding.text = finding.call + " of graph exec " + hex(finding.handle) + ": " + std::string(work.name) +
                   " in it touches [" + hex(effect.address) + ", " + hex(effect.address + effect.size) +
                   "), which is no longer mapped, allocated or accessible";
    call.machine.findings.add(std::move(finding));
    work.run = [] { return kIllegalAddress; };
    work.effects.clear();
    return;
  }
}

}  // namespace

Capture::Member* Capture::member(const StreamRef& stream) {
  for (Member& m : members) {
    if (m.stream == stream) return &m;
  }
  return nullptr;
}

void record_work(Call&, const StreamRef& stream, Work work) {
  Capture& capture = *stream->capture;
  require(!capture.invalid, kCaptureInvalidated);
  work.after.clear();
  capture.graph->work.push_back(std::move(work));
  capture.member(stream)->work = ++capture.recorded;
}

CapturedMark mark_capture(const StreamRef& stream) {
  return {stream->capture, stream, stream->capture->member(stream)->work};
}

void drop_capture(Machine& m, const StreamRef& stream) {
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return;
  capture->invalid = true;
  if (capture->origin == stream) leave(m, capture);
}

void join_capture(Call& call, const StreamRef& stream, const CapturedMark& mark) {
  Capture& capture = *mark.capture;
  require(call.machine.captures.contains(capture.id), kCapturedEvent);  // it has ended
  require(!capture.invalid, kCaptureInvalidated);
  if (stream->capture && stream->capture != mark.capture) invalidate(capture, kCaptureMerge);
  if (stream == stream->context->legacy) invalidate(capture, kCaptureImplicit);
  if (!stream->capture) {
    stream->capture = mark.capture;
    capture.members.push_back({stream, capture.recorded, 0});
  }
  Capture::Member& from = *capture.member(mark.stream);
  Capture::Member& to = *capture.member(stream);
  from.joined = std::max(from.joined, mark.work);
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
  return enter("cuStreamBeginCapture", Need::kContext, [&](Call& call) {
    require(cu::bits(mode) <= cu::bits(cu::CaptureMode::kRelaxed), kInvalidValue);
    const StreamRef stream = stream_of(call, handle);
    require(stream != call.context->legacy, kCaptureUnsupported);
    require(!stream->capture, kIllegalState);
    auto capture = std::make_shared<Capture>();
    capture->id = call.machine.next_id++;
    capture->mode = mode;
    capture->thread = this_thread();
    capture->origin = stream;
    capture->handle = call.machine.graphs.reserve(call.machine.settings.reuse);
    capture->members.push_back({stream});
    stream->capture = capture;
    call.machine.captures.emplace(capture->id, capture);
    return kSuccess;
  });
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
      unjoined |= member.stream != stream && member.joined < member.work;
    }
    leave(call.machine, capture);
    require(!capture->invalid, kCaptureInvalidated);
    require(!unjoined, kCaptureUnjoined);
    *graph = capture->handle;
    call.machine.graphs.add(*graph, capture->graph);
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

// Graph nodes have no handles here, so the lists of dependencies are empty.
CUDASIM_EXPORT Result cuStreamGetCaptureInfo_v3(cu::Stream stream, cu::CaptureStatus* status, std::uint64_t* id,
                                                cu::Graph* graph, const cu::GraphNode** dependencies,
                                                const cu::GraphEdgeData** edges, std::size_t* count) {
  return capture_info("cuStreamGetCaptureInfo", stream, status, id, [&](const StreamRef& captured) {
    if (graph != nullptr) *graph = captured->capture->handle;
    if (dependencies != nullptr) *dependencies = nullptr;
    if (edges != nullptr) *edges = nullptr;
    if (count != nullptr) *count = 0;
  });
}

CUDASIM_EXPORT Result cuThreadExchangeStreamCaptureMode(cu::CaptureMode* mode) {
  return enter("cuThreadExchangeStreamCaptureMode", Need::kDriver, [&](Call&) {
    require(mode != nullptr && cu::bits(*mode) <= cu::bits(cu::CaptureMode::kRelaxed), kInvalidValue);
    std::swap(*mode, thread_mode);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphInstantiateWithFlags(cu::GraphExec* exec, cu::Graph graph, unsigned long long flags) {
  return enter("cuGraphInstantiateWithFlags", Need::kContext,
               [&](Call& call) { return instantiate(call, exec, graph, flags); });
}

CUDASIM_EXPORT Result cuGraphInstantiateWithParams(cu::GraphExec* exec, cu::Graph graph,
                                                   cu::GraphInstantiateParams* params) {
  return enter("cuGraphInstantiateWithParams", Need::kContext, [&](Call& call) {
    require(params != nullptr, kInvalidValue);
    params->failed_node = nullptr;
    params->result = cu::GraphInstantiateResult::kError;
    instantiate(call, exec, graph, params->flags);
    params->result = cu::GraphInstantiateResult::kSuccess;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphLaunch(cu::GraphExec handle, cu::Stream stream_handle) {
  return enter("cuGraphLaunch", Need::kContext, [&](Call& call) {
    const auto exec = find_live(call, call.machine.graph_execs, handle);
    require(exec != nullptr, kInvalidValue);
    const StreamRef stream = stream_of(call, stream_handle);
    if (stream->capture) {  // the work becomes part of another graph
      for (const Work& work : exec->work) record_work(call, stream, work);
      return kSuccess;
    }
    stream->clock.join(exec->clock);  // launches of one graph run one after the other, in any streams
    std::vector<Mark> after{exec->launched};
    for (Work work : exec->work) {
      fault_if_gone(call, handle, work);
      work.after = std::exchange(after, {});
      exec->launched = submit(call, stream, std::move(work));
    }
    exec->clock = stream->clock;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphExecDestroy(cu::GraphExec exec) {
  return enter("cuGraphExecDestroy", Need::kDriver, [&](Call& call) {
    require(find_live(call, call.machine.graph_execs, exec) != nullptr, kInvalidValue);
    call.machine.graph_execs.erase(exec, death_by(call));
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphDestroy(cu::Graph graph) {
  return enter("cuGraphDestroy", Need::kDriver, [&](Call& call) {
    graph_of(call, graph);
    call.machine.graphs.erase(graph, death_by(call));
    return kSuccess;
  });
}
