// Contexts: primary ones, others, and each thread's stack of current ones.
#include "cudasim/api/contexts.hpp"

#include <algorithm>

#include "cudasim/api/capture.hpp"
#include "cudasim/api/events.hpp"
#include "cudasim/api/memory.hpp"
#include "cudasim/api/modules.hpp"

namespace cudasim {
namespace {

constexpr int kStackDepth = 64;

// Trivial, so that it can be used while a thread or the process exits.
struct Stack {
  std::uint64_t generation;
  int depth;
  cu::Context contexts[kStackDepth];
};
thread_local Stack stack_storage{};

Stack& stack(Machine& m) {
  if (stack_storage.generation != m.generation) stack_storage = Stack{m.generation, 0, {}};
  return stack_storage;
}

void push(Machine& m, cu::Context context) {
  Stack& s = stack(m);
  require(s.depth < kStackDepth, kOutOfMemory);
  s.contexts[s.depth++] = context;
}

bool is_primary(const Machine& m, cu::Context context) {
  const auto is_its = [&](const auto& device) { return device->primary_handle == context; };
  return std::any_of(m.devices.begin(), m.devices.end(), is_its);
}

// The handle of a primary context is valid even while there is none: using it then is an error, but not a finding.
ContextRef find_context(Call& call, cu::Context handle) {
  const auto& contexts = call.machine.contexts;
  return is_primary(call.machine, handle) ? contexts.find(handle) : find_live(call, contexts, handle);
}

// A primary context can be made current even while there is none: calls then return that it is destroyed.
void check_can_be_current(Call& call, cu::Context context) {
  if (is_primary(call.machine, context)) return;
  require(find_context(call, context) != nullptr, kInvalidContext);
}

// Memory that contexts take on a device: the same for one context and for many. Throws Refusal.
void charge_context(Machine& m, DeviceState& device) {
  const std::uint64_t bytes = m.settings.card.context;
  if (device.contexts == 0) {
    require(bytes <= m.free_bytes(device), kOutOfMemory);
    device.used += bytes;
    device.peak = std::max(device.peak, device.used);
  }
  ++device.contexts;
}

ContextRef new_context(Machine& m, DeviceState& device, cu::Context handle, unsigned flags) {
  charge_context(m, device);
  auto context = std::make_shared<ContextState>();
  context->handle = handle;
  context->device = &device;
  context->flags = flags;
  context->primary = handle == device.primary_handle;
  context->id = m.next_id++;
  context->limits = standard_limits();
  m.contexts.add(context->handle, context);
  return context;
}

Result create(Call& call, cu::Context* out, unsigned flags, int device) {
  require(out != nullptr && (flags & ~kContextFlags) == 0, kInvalidValue);
  require(stack(call.machine).depth < kStackDepth, kOutOfMemory);
  DeviceState& owner = call.machine.device(device);
  require(!call.machine.settings.is_exclusive(owner.number), kDeviceUnavailable);
  const ContextRef context = new_context(call.machine, owner, call.machine.contexts.reserve_new(), flags);
  push(call.machine, context->handle);
  *out = context->handle;
  return kSuccess;
}

void wait_for_all(Call& call, const ContextState& context) {
  for (const StreamRef& stream : streams_of(call.machine, context)) call.wait_for(stream);
}

enum class IfRetained { kKeep, kEnd };

// A context can be ended only when its work is done, and waiting for that needs the mutex released: hence two steps.
Result end_after_wait(const char* name, IfRetained if_retained, const std::function<ContextRef(Call&)>& choose) {
  ContextRef context;
  Death death;
  const Result result = enter(name, Need::kDriver, [&](Call& call) {
    death = death_by(call);
    context = choose(call);
    if (!context) return kSuccess;
    context->alive = false;  // accepts no more work
    wait_for_all(call, *context);
    return kSuccess;
  });
  if (!context || forked()) return result;
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  if (m.contexts.find(context->handle) != context) return kSuccess;  // another thread was faster
  if (context->primary) {
    DeviceState& device = *context->device;
    if (device.primary_users > 0 && if_retained == IfRetained::kKeep) return kSuccess;  // retained during the wait
    device.primary = nullptr;
  }
  end_context(m, context, death);
  return kSuccess;
}

Result synchronize(Call& call, const ContextRef& context) {
  check_no_capture(call, *context);
  call.context = context;
  wait_for_all(call, *context);
  return kSuccess;
}

Result release_primary(int number) {
  return end_after_wait("cuDevicePrimaryCtxRelease", IfRetained::kKeep, [&](Call& call) -> ContextRef {
    DeviceState& device = call.machine.device(number);
    require(device.primary_users > 0, kInvalidContext);
    return --device.primary_users > 0 ? nullptr : device.primary;
  });
}

Result reset_primary(int number) {
  // The reference count stays, and the next retain creates a new context.
  return end_after_wait("cuDevicePrimaryCtxReset", IfRetained::kEnd,
                        [&](Call& call) -> ContextRef { return call.machine.device(number).primary; });
}

Result set_primary_flags(int number, unsigned flags) {
  return enter("cuDevicePrimaryCtxSetFlags", Need::kDriver, [&](Call& call) {
    require((flags & ~kContextFlags) == 0, kInvalidValue);
    call.machine.device(number).primary_flags = flags;
    return kSuccess;
  });
}

}  // namespace

ContextRef current_context(Machine& m) {
  const Stack& s = stack(m);
  if (s.depth == 0) return nullptr;
  const cu::Context handle = s.contexts[s.depth - 1];
  if (handle == nullptr) return nullptr;
  ContextRef context = m.contexts.find(handle);
  if (context) return context;
  // Destroyed while it was current: calls return that.
  context = std::make_shared<ContextState>();
  context->handle = handle;
  context->alive = false;
  return context;
}

ContextRef context_of(Call& call, cu::Context handle) {
  if (handle == nullptr) {
    require(call.context != nullptr, kInvalidContext);
    require(call.context->alive, kContextIsDestroyed);
    return call.context;
  }
  ContextRef context = find_context(call, handle);
  require(context != nullptr && context->alive, kInvalidContext);
  return context;
}

std::vector<StreamRef> streams_of(Machine& m, const ContextState& context) {
  std::vector<StreamRef> found;
  for (const auto& [handle, stream] : m.streams.all()) {
    if (stream->context.get() == &context) found.push_back(stream);
  }
  if (context.legacy) found.push_back(context.legacy);
  if (context.recorder) found.push_back(context.recorder);
  for (const auto& [thread, own] : context.per_thread) found.push_back(own.stream);
  found.insert(found.end(), context.destroyed.begin(), context.destroyed.end());
  return found;
}

void retire_streams(Machine& m, ContextState& context) {
  std::erase_if(context.destroyed, [&](const StreamRef& stream) {
    if (!stream->idle()) return false;
    if (m.checker.on() && !m.checker.host_has_seen(stream->actor)) return false;
    stream->actor->retired = true;
    return true;
  });
}

void end_context(Machine& m, const ContextRef& context, const Death& death) {
  context->alive = false;
  for (const StreamRef& stream : streams_of(m, *context)) {
    stream->actor->retired = true;
    drop_capture(m, stream);
    if (m.streams.find(stream->handle) == stream) m.streams.erase(stream->handle, death);  // the handle may be reused
  }
  forget_events(m, *context, death);
  forget_modules(m, *context, death);
  free_allocations(m, context->handle);
  context->legacy.reset();
  context->blocking.clear();
  context->recorder.reset();
  context->per_thread.clear();
  context->destroyed.clear();
  m.contexts.erase(context->handle, death);
  if (--context->device->contexts == 0) context->device->used -= m.settings.card.context;
  for (const auto& [handle, other] : m.contexts.all()) other->peers.erase(context->handle);
}

StreamRef legacy_stream_of(Machine&, const ContextRef& context) {
  if (!context->legacy) {
    context->legacy =
        std::make_shared<StreamState>(context, cu::legacy_stream(), cu::bits(cu::StreamFlag::kDefault), 0);
  }
  return context->legacy;
}

// Non-blocking, so that recording an event orders nothing. Its marks are in the order of the calls, which is correct: a
// later event covers everything that an earlier one does.
StreamRef recorder_of(const ContextRef& context) {
  if (!context->recorder) {
    context->recorder = std::make_shared<StreamState>(context, nullptr, cu::bits(cu::StreamFlag::kNonBlocking), 0);
  }
  return context->recorder;
}

// The stream of a thread that has ended counts as destroyed: its queued work still runs.
void retire_per_thread_streams(Machine& m, ContextState& context) {
  std::erase_if(context.per_thread, [&](const auto& entry) {
    const auto& [stream, life] = entry.second;
    if (!life.expired() || stream->capture) return false;
    context.destroyed.push_back(stream);
    return true;
  });
  retire_streams(m, context);
}

StreamRef per_thread_stream_of(Machine& m, const ContextRef& context) {
  const auto found = context->per_thread.find(this_thread());
  if (found != context->per_thread.end()) return found->second.stream;
  retire_per_thread_streams(m, *context);
  auto stream = std::make_shared<StreamState>(context, cu::per_thread_stream(), cu::bits(cu::StreamFlag::kDefault), 0);
  context->per_thread[this_thread()] = {stream, life_of_this_thread()};
  return stream;
}

}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuDevicePrimaryCtxRetain(cu::Context* context, cu::Device number) {
  return enter("cuDevicePrimaryCtxRetain", Need::kDriver, [&](Call& call) {
    require(context != nullptr, kInvalidValue);
    DeviceState& device = call.machine.device(number);
    require(device.primary || !call.machine.settings.is_exclusive(number), kDeviceUnavailable);
    if (!device.primary) {
      device.primary = new_context(call.machine, device, device.primary_handle, device.primary_flags);
    }
    if (device.primary_users++ == 0) device.primary->alive = true;  // its last user may be waiting to end it
    *context = device.primary->handle;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuDevicePrimaryCtxRelease(cu::Device device) { return release_primary(device); }
CUDASIM_EXPORT Result cuDevicePrimaryCtxRelease_v2(cu::Device device) { return release_primary(device); }
CUDASIM_EXPORT Result cuDevicePrimaryCtxReset(cu::Device device) { return reset_primary(device); }
CUDASIM_EXPORT Result cuDevicePrimaryCtxReset_v2(cu::Device device) { return reset_primary(device); }
CUDASIM_EXPORT Result cuDevicePrimaryCtxSetFlags(cu::Device d, unsigned flags) { return set_primary_flags(d, flags); }
CUDASIM_EXPORT Result cuDevicePrimaryCtxSetFlags_v2(cu::Device d, unsigned flags) {
  return set_primary_flags(d, flags);
}

CUDASIM_EXPORT Result cuDevicePrimaryCtxGetState(cu::Device number, unsigned* flags, int* active) {
  return enter("cuDevicePrimaryCtxGetState", Need::kDriver, [&](Call& call) {
    require(flags != nullptr && active != nullptr, kInvalidValue);
    const DeviceState& device = call.machine.device(number);
    *flags = device.primary_flags;
    *active = device.primary != nullptr;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuCtxCreate_v2(cu::Context* context, unsigned flags, cu::Device device) {
  return enter("cuCtxCreate", Need::kDriver, [&](Call& call) { return create(call, context, flags, device); });
}

CUDASIM_EXPORT Result cuCtxCreate_v3(cu::Context* context, cu::ExecAffinityParam*, int count, unsigned flags,
                                     cu::Device device) {
  return enter("cuCtxCreate", Need::kDriver, [&](Call& call) {
    require(count == 0, kNotSupported);  // there are no multiprocessors to assign
    return create(call, context, flags, device);
  });
}

CUDASIM_EXPORT Result cuCtxCreate_v4(cu::Context* context, cu::CtxCreateParams* params, unsigned flags,
                                     cu::Device device) {
  return enter("cuCtxCreate", Need::kDriver, [&](Call& call) {
    require(params == nullptr || (params->exec_affinity_count == 0 && params->cig_params == nullptr), kNotSupported);
    return create(call, context, flags, device);
  });
}

CUDASIM_EXPORT Result cuCtxDestroy_v2(cu::Context handle) {
  return end_after_wait("cuCtxDestroy", IfRetained::kEnd, [&](Call& call) {
    require(handle != nullptr, kInvalidValue);
    ContextRef context = context_of(call, handle);
    require(!context->primary, kInvalidContext);
    Stack& s = stack(call.machine);
    if (s.depth > 0 && s.contexts[s.depth - 1] == handle) --s.depth;
    return context;
  });
}

CUDASIM_EXPORT Result cuCtxSetCurrent(cu::Context context) {
  return enter("cuCtxSetCurrent", Need::kDriver, [&](Call& call) {
    if (context != nullptr) check_can_be_current(call, context);
    Stack& s = stack(call.machine);
    if (s.depth > 0) --s.depth;
    if (context != nullptr) push(call.machine, context);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuCtxGetCurrent(cu::Context* context) {
  return enter("cuCtxGetCurrent", Need::kDriver, [&](Call& call) {
    require(context != nullptr, kInvalidValue);
    *context = call.context ? call.context->handle : nullptr;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuCtxPushCurrent_v2(cu::Context context) {
  return enter("cuCtxPushCurrent", Need::kDriver, [&](Call& call) {
    require(context != nullptr, kInvalidContext);
    check_can_be_current(call, context);
    push(call.machine, context);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuCtxPopCurrent_v2(cu::Context* context) {
  return enter("cuCtxPopCurrent", Need::kDriver, [&](Call& call) {
    Stack& s = stack(call.machine);
    require(s.depth > 0, kInvalidContext);
    --s.depth;
    if (context != nullptr) *context = s.contexts[s.depth];
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuCtxGetDevice(cu::Device* device) {
  return enter("cuCtxGetDevice", Need::kContext, [&](Call& call) {
    require(device != nullptr, kInvalidValue);
    *device = call.context->device->number;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuCtxGetDevice_v2(cu::Device* device, cu::Context context) {
  return enter("cuCtxGetDevice", Need::kDriver, [&](Call& call) {
    require(device != nullptr, kInvalidValue);
    *device = context_of(call, context)->device->number;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuCtxSynchronize() {
  return enter("cuCtxSynchronize", Need::kContext, [&](Call& call) { return synchronize(call, call.context); });
}

CUDASIM_EXPORT Result cuCtxSynchronize_v2(cu::Context context) {
  return enter("cuCtxSynchronize", Need::kDriver,
               [&](Call& call) { return synchronize(call, context_of(call, context)); });
}

CUDASIM_EXPORT Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return enter("cuCtxGetStreamPriorityRange", Need::kContext, [&](Call&) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuCtxGetFlags(unsigned* flags) {
  return enter("cuCtxGetFlags", Need::kContext, [&](Call& call) {
    require(flags != nullptr, kInvalidValue);
    *flags = call.context->flags;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuCtxGetApiVersion(cu::Context context, unsigned* version) {
  return enter("cuCtxGetApiVersion", Need::kDriver, [&](Call& call) {
    require(version != nullptr, kInvalidValue);
    context_of(call, context);
    *version = 3020;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuCtxGetId(cu::Context context, unsigned long long* id) {
  return enter("cuCtxGetId", Need::kDriver, [&](Call& call) {
    require(id != nullptr, kInvalidValue);
    *id = context_of(call, context)->id;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuCtxEnablePeerAccess(cu::Context peer, unsigned flags) {
  return enter("cuCtxEnablePeerAccess", Need::kContext, [&](Call& call) {
    require(flags == 0, kInvalidValue);
    require(peer != nullptr && peer != call.context->handle, kInvalidContext);
    const int from = call.context->device->number;
    const int to = context_of(call, peer)->device->number;
    require(call.machine.settings.can_access_peer(from, to), kPeerAccessUnsupported);
    require(call.context->peers.insert(peer).second, kPeerAccessAlreadyEnabled);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuCtxDisablePeerAccess(cu::Context peer) {
  return enter("cuCtxDisablePeerAccess", Need::kContext, [&](Call& call) {
    require(peer != nullptr, kInvalidContext);
    context_of(call, peer);
    require(call.context->peers.erase(peer) > 0, kPeerAccessNotEnabled);
    return kSuccess;
  });
}
