// Executable graphs: instantiate, update, upload and launch. Graphs own no memory, because allocation nodes are not
// simulated.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "cudasim/api/capture.hpp"
#include "cudasim/api/contexts.hpp"
#include "cudasim/api/events.hpp"
#include "cudasim/api/graphs.hpp"

namespace cudasim {
namespace {

using ExecRef = std::shared_ptr<ExecState>;

constexpr std::uint64_t kUploadFlag = cu::bits(cu::GraphInstantiateFlag::kUpload);
constexpr std::uint64_t kDeviceLaunchFlag = cu::bits(cu::GraphInstantiateFlag::kDeviceLaunch);
constexpr std::uint64_t kKnownGraphFlags = 15;

ExecRef exec_of(Call& call, cu::GraphExec handle) {
  ExecRef exec = find_live(call, call.machine.graph_execs, handle);
  require(exec != nullptr, kInvalidValue);
  return exec;
}

const KernelParams* kernel_in(const Work& work) {
  return work.params ? std::get_if<KernelParams>(&work.params->described) : nullptr;
}

EventState* event_in(const Work& work) {
  const auto* node = work.params ? std::get_if<EventParams>(&work.params->described) : nullptr;
  return node != nullptr ? node->event.get() : nullptr;
}

std::vector<ExecState::Shape> shape_of(const GraphState& graph) {
  std::map<const NodeState*, std::size_t> places;
  std::vector<ExecState::Shape> shape;
  for (const NodeRef& node : graph.nodes) places.emplace(node.get(), places.size());
  for (const NodeRef& node : graph.nodes) {
    const KernelParams* kernel = kernel_in(node->work);
    ExecState::Shape one{.type = node->work.node,
                         .dependencies = {},
                         .context = kernel ? kernel->function->module->context : nullptr,
                         .child = node->child ? shape_of(*node->child) : std::vector<ExecState::Shape>{}};
    for (const NodeState* before : node->dependencies) one.dependencies.push_back(places.at(before));
    std::sort(one.dependencies.begin(), one.dependencies.end());
    shape.push_back(std::move(one));
  }
  return shape;
}

Result instantiate(Call& call, cu::GraphExec* out, cu::Graph handle, std::uint64_t flags) {
  require(out != nullptr && flags <= kKnownGraphFlags, kInvalidValue);
  require((flags & kDeviceLaunchFlag) == 0, kNotSupported);  // no code runs on the device that could launch it
  const GraphRef graph = graph_of(call, handle);
  auto exec = std::make_shared<ExecState>();
  exec->work = ordered_work(*graph);
  exec->shape = shape_of(*graph);
  exec->flags = flags & ~kUploadFlag;
  exec->users = std::make_shared<UserRefs>(graph->users);
  *out = call.machine.graph_execs.reserve(call.machine.settings.reuse);
  call.machine.graph_execs.add(*out, exec);
  return kSuccess;
}

void report_gone(Call& call, cu::GraphExec exec, const char* kind, const std::string& what) {
  Finding finding;
  finding.kind = kind;
  finding.call = call.name;
  finding.handle = reinterpret_cast<std::uint64_t>(exec);
  finding.text = finding.call + " of graph exec " + hex(finding.handle) + ": " + what;
  call.machine.findings.add(std::move(finding));
}

// A launch does not check addresses or code: work on what is gone faults when the device gets to it.
void fault_if_gone(Call& call, cu::GraphExec exec, Work& work) {
  if (const KernelParams* kernel = kernel_in(work); kernel != nullptr && kernel->function->module->unloaded) {
    report_gone(call, exec, "module gone", "kernel " + kernel->function->info.name + " in it was unloaded");
    work.run = [] { return kIllegalInstruction; };
    work.track = {};
    return;
  }
  for (const Effect& effect : work.effects) {
    if (locate(call.machine, effect, nullptr)) continue;
    report_gone(call, exec, "graph memory gone",
                std::string(work.name) + " in it touches [" + hex(effect.address) + ", " +
                    hex(effect.address + effect.size) + "), which is no longer mapped, allocated or accessible");
    work.run = [] { return kIllegalAddress; };
    work.track = {};
    work.effects.clear();
    return;
  }
}

// The first difference between what can be launched and a graph, or success.
cu::GraphExecUpdateResultInfo compare(const std::vector<ExecState::Shape>& old, const GraphState& graph) {
  using enum cu::GraphExecUpdateResult;
  const auto shape = shape_of(graph);
  if (shape.size() != old.size()) return {kTopologyChanged, nullptr, nullptr};
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const cu::GraphNode node = graph.nodes[i]->handle;
    if (shape[i].type != old[i].type) return {kNodeTypeChanged, node, nullptr};
    if (shape[i].dependencies != old[i].dependencies) return {kTopologyChanged, node, nullptr};
    if (shape[i].context != old[i].context) return {kUnsupportedFunctionChange, node, nullptr};
    if (!graph.nodes[i]->child) continue;
    const auto inner = compare(old[i].child, *graph.nodes[i]->child);
    if (inner.result != kSuccess) return inner;
  }
  return {kSuccess, nullptr, nullptr};
}

}  // namespace
}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuGraphInstantiateWithFlags(cu::GraphExec* exec, cu::Graph graph, unsigned long long flags) {
  return enter("cuGraphInstantiateWithFlags", Need::kContext, [&](Call& call) {
    require((flags & kUploadFlag) == 0, kInvalidValue);  // needs a stream
    return instantiate(call, exec, graph, flags);
  });
}

CUDASIM_EXPORT Result cuGraphInstantiateWithParams(cu::GraphExec* exec, cu::Graph graph,
                                                   cu::GraphInstantiateParams* params) {
  return enter("cuGraphInstantiateWithParams", Need::kContext, [&](Call& call) {
    require(params != nullptr, kInvalidValue);
    params->failed_node = nullptr;
    params->result = cu::GraphInstantiateResult::kError;
    if ((params->flags & kUploadFlag) != 0) stream_of(call, params->upload_stream);
    instantiate(call, exec, graph, params->flags);
    params->result = cu::GraphInstantiateResult::kSuccess;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphLaunch(cu::GraphExec handle, cu::Stream stream_handle) {
  return enter("cuGraphLaunch", Need::kContext, [&](Call& call) {
    const ExecRef exec = exec_of(call, handle);
    const StreamRef stream = stream_of(call, stream_handle);
    if (stream->capture) {  // becomes a part of another graph
      for (const Work& work : exec->work) record_work(call, stream, work);
      stream->capture->graph->users.take(*exec->users);
      return kSuccess;
    }
    stream->clock.join(exec->clock);  // launches of one graph run one after the other, whatever their streams
    std::vector<Mark> after{exec->launched};
    for (Work work : exec->work) {
      fault_if_gone(call, handle, work);
      work.after = std::exchange(after, {});
      std::erase_if(work.after, [](const Mark& mark) { return mark.reached(); });
      EventState* event = event_in(work);
      exec->launched = event != nullptr ? submit_event_node(call, stream, *event, std::move(work))
                                        : submit(call, stream, std::move(work));
    }
    // What the graph keeps alive stays until the launch is over, even if the graph does not.
    if (!exec->launched.reached()) {
      submit(call, stream, {.name = call.name, .run = [users = exec->users] { return kSuccess; }, .delayed = false});
    }
    exec->clock = stream->clock;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphUpload(cu::GraphExec handle, cu::Stream stream_handle) {
  return enter("cuGraphUpload", Need::kContext, [&](Call& call) {
    const ExecRef exec = exec_of(call, handle);
    const StreamRef stream = stream_of(call, stream_handle);
    refuse_capture(*stream, kCaptureUnsupported);
    Work work{.name = call.name};
    if (!exec->launched.reached()) work.after.push_back(exec->launched);
    submit(call, stream, std::move(work));
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphExecGetFlags(cu::GraphExec handle, std::uint64_t* flags) {
  return enter("cuGraphExecGetFlags", Need::kDriver, [&](Call& call) {
    require(flags != nullptr, kInvalidValue);
    *flags = exec_of(call, handle)->flags;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphExecUpdate_v2(cu::GraphExec handle, cu::Graph graph_handle,
                                           cu::GraphExecUpdateResultInfo* info) {
  return enter("cuGraphExecUpdate", Need::kDriver, [&](Call& call) {
    require(info != nullptr, kInvalidValue);
    *info = {cu::GraphExecUpdateResult::kError, nullptr, nullptr};
    const ExecRef exec = exec_of(call, handle);
    const GraphRef graph = graph_of(call, graph_handle);
    *info = compare(exec->shape, *graph);
    require(info->result == cu::GraphExecUpdateResult::kSuccess, kGraphExecUpdateFailure);
    exec->work = ordered_work(*graph);
    exec->users = std::make_shared<UserRefs>(graph->users);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphExecDestroy(cu::GraphExec exec) {
  return enter("cuGraphExecDestroy", Need::kDriver, [&](Call& call) {
    exec_of(call, exec);
    call.machine.graph_execs.erase(exec, death_by(call));
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuDeviceGraphMemTrim(cu::Device device) {
  return enter("cuDeviceGraphMemTrim", Need::kDriver, [&](Call& call) {
    call.machine.device(device);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuDeviceGetGraphMemAttribute(cu::Device device, cu::GraphMemAttribute what, void* value) {
  return enter("cuDeviceGetGraphMemAttribute", Need::kDriver, [&](Call& call) {
    require(value != nullptr && cu::bits(what) <= cu::bits(cu::GraphMemAttribute::kReservedHigh), kInvalidValue);
    call.machine.device(device);
    const std::uint64_t nothing = 0;
    std::memcpy(value, &nothing, sizeof nothing);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuDeviceSetGraphMemAttribute(cu::Device device, cu::GraphMemAttribute what, void* value) {
  return enter("cuDeviceSetGraphMemAttribute", Need::kDriver, [&](Call& call) {
    using enum cu::GraphMemAttribute;
    require(value != nullptr && (what == kUsedHigh || what == kReservedHigh), kInvalidValue);
    call.machine.device(device);
    std::uint64_t given = 0;
    std::memcpy(&given, value, sizeof given);
    require(given == 0, kInvalidValue);  // a high-water mark can only be set back
    return kSuccess;
  });
}
