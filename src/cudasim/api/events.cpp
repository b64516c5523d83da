// The API's functions on streams and events.
#include "cudasim/api/events.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

#include "cudasim/api/contexts.hpp"
#include "cudasim/machine/submit.hpp"

namespace cudasim {
namespace {

using EventRef = std::shared_ptr<EventState>;

EventRef event_of(Call& call, cu::Event handle) {
  EventRef event = find_live(call, call.machine.events, handle);
  require(event != nullptr, kInvalidHandle);
  return event;
}

// For calls that query an event or wait for it on the host.
EventRef event_for_host(Call& call, cu::Event handle) {
  EventRef event = event_of(call, handle);
  if (event->captured.capture) {  // it is not documented that the capture stays valid, so it does not
    invalidate_if_in_progress(call.machine, *event->captured.capture);
    throw Refusal{kCapturedEvent};
  }
  check_safe_in_capture(call);
  return event;
}

// Records the event in a stream that is not being captured.
void record_at(Call& call, EventState& event, const StreamRef& stream, Work work = {}) {
  auto time = std::make_shared<std::chrono::steady_clock::time_point>();
  const auto stamp = [time] {
    *time = std::chrono::steady_clock::now();
    return kSuccess;
  };
  work.name = call.name;
  work.run = stamp;
  event.mark = submit(call, stream, std::move(work));
  event.time = time;
  event.clock = stream->clock;
  event.captured = {};
  event.recorded = true;
}

// In a capture, an external event becomes a node of the graph.
void capture_event(Call& call, const StreamRef& stream, const EventRef& event, cu::GraphNodeType type) {
  require(stream->capture != nullptr, kInvalidValue);
  Work work{.name = call.name, .node = type};
  work.params = std::make_shared<const NodeParams>(NodeParams{EventParams{event}});
  record_work(call, stream, std::move(work));
}

Result record(std::string_view name, cu::Event handle, cu::Stream stream_handle, unsigned flags) {
  return enter(name, Need::kContext, [&](Call& call) {
    require(flags <= cu::bits(cu::EventRecordFlag::kExternal), kInvalidValue);
    const EventRef event = event_of(call, handle);
    const StreamRef stream = stream_of(call, stream_handle);
    require(event->context == stream->context.get(), kInvalidHandle);
    if (flags == cu::bits(cu::EventRecordFlag::kExternal)) {
      capture_event(call, stream, event, cu::GraphNodeType::kEventRecord);
      return kSuccess;
    }
    if (stream->capture) {
      require(!stream->capture->invalid, kCaptureInvalidated);
      event->captured = mark_capture(stream);
      return kSuccess;
    }
    record_at(call, *event, stream);
    return kSuccess;
  });
}

ContextRef working_context(Call& call, cu::Context handle) {
  require(handle != nullptr, kInvalidContext);
  ContextRef context = context_of(call, handle);
  const Result failed = context->error.load();
  require(failed == kSuccess, failed);
  return context;
}

// Kernels take no time here, and the time between two events is that of queueing them: different in each run. While values
// are tracked, runs of a program are compared, and a program may choose by times (cuDNN tries its algorithms). So a task
// of the stream takes a microsecond then.
float milliseconds_between(const EventState& first, const EventState& second, bool is_repeatable) {
  const Mark &begin = first.mark, &end = second.mark;
  if (is_repeatable && begin.stream != nullptr && begin.stream == end.stream) {
    return static_cast<float>(static_cast<std::int64_t>(end.tasks - begin.tasks)) / 1000;
  }
  return std::chrono::duration<float, std::milli>(*second.time - *first.time).count();
}

Result elapsed(float* milliseconds, cu::Event start, cu::Event end) {
  return enter("cuEventElapsedTime", Need::kContext, [&](Call& call) {
    require(milliseconds != nullptr, kInvalidValue);
    const EventRef first = event_for_host(call, start);
    const EventRef second = event_for_host(call, end);
    for (const EventRef& event : {first, second}) {
      require(event->recorded && (event->flags & cu::bits(cu::EventFlag::kDisableTiming)) == 0, kInvalidHandle);
    }
    require(first->context->device == second->context->device, kInvalidHandle);
    if (!first->mark.reached() || !second->mark.reached()) return kNotReady;
    *milliseconds = milliseconds_between(*first, *second, call.machine.settings.values);
    return kSuccess;
  });
}

Result create_stream(std::string_view name, cu::Stream* out, unsigned flags, int priority) {
  return enter(name, Need::kContext, [&](Call& call) {
    require(out != nullptr && flags <= cu::bits(cu::StreamFlag::kNonBlocking), kInvalidValue);
    const cu::Stream handle = call.machine.streams.reserve(call.machine.settings.reuse);
    const int clamped = std::clamp(priority, -5, 0);  // as the driver does
    const auto stream = std::make_shared<StreamState>(call.context, handle, flags, clamped);
    call.machine.streams.add(handle, stream);
    if (stream->blocking()) call.context->blocking.push_back(stream);
    *out = handle;
    return kSuccess;
  });
}

template <typename Value, typename Get>
Result stream_property(std::string_view name, cu::Stream handle, Value* out, Get get) {
  return enter(name, Need::kContext, [&](Call& call) {
    require(out != nullptr, kInvalidValue);
    *out = get(stream_of(call, handle));
    return kSuccess;
  });
}

std::atomic<bool> may_call_host = true;
std::atomic<int> host_calls = 0;  // running

enum class AfterFault { kSkip, kCall };

// Queues a call to a function of the program.
void submit_host_function(Call& call, const StreamRef& stream, AfterFault after_fault,
                          const std::function<void()>& function, const std::shared_ptr<const NodeParams>& params = {}) {
  auto reached = std::make_shared<Clock>();
  Work work = host_work(call.name, function, reached);
  work.even_failed = after_fault == AfterFault::kCall;
  work.params = params;
  submit(call, stream, std::move(work));
  *reached = stream->clock;  // the function cannot have begun, because the mutex is held
}

}  // namespace

void call_program(const std::function<void()>& function) {
  const InHostFunction scope;
  ++host_calls;
  if (may_call_host) function();
  --host_calls;
}

Work host_work(std::string_view name, const std::function<void()>& function,
               const std::shared_ptr<const Clock>& reached) {
  const auto run = [function, reached] {
    if (reached) {
      const std::lock_guard lock(machine().mutex);
      machine().checker.host_waited(*reached);
    }
    call_program(function);
    return kSuccess;
  };
  return {.name = name, .run = run, .on_worker = true, .node = cu::GraphNodeType::kHost};
}

void stop_host_functions() {
  constexpr auto kLongest = std::chrono::seconds(1);
  may_call_host = false;
  if (forked()) return;  // the running ones are the parent's
  const auto begin = std::chrono::steady_clock::now();
  while (host_calls > 0 && std::chrono::steady_clock::now() - begin < kLongest) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void record_with_launch(Call& call, cu::Event handle, const StreamRef& stream) {
  const EventRef event = event_of(call, handle);
  require(event->context == stream->context.get(), kInvalidHandle);
  const bool untimed = (event->flags & cu::bits(cu::EventFlag::kDisableTiming)) != 0;
  require(untimed && (event->flags & cu::bits(cu::EventFlag::kInterprocess)) == 0, kInvalidValue);
  if (stream->capture) {
    event->captured = mark_capture(stream);
  } else {
    record_at(call, *event, stream);
  }
}

Mark submit_event_node(Call& call, const StreamRef& stream, EventState& event, Work work) {
  if (work.node == cu::GraphNodeType::kEventRecord) {
    record_at(call, event, stream, std::move(work));
    return event.mark;
  }
  if (event.recorded) {
    stream->clock.join(event.clock);
    if (!event.mark.reached()) work.after.push_back(event.mark);
  }
  return submit(call, stream, std::move(work));
}

void forget_events(Machine& m, const ContextState& context, const Death& death) {
  std::vector<cu::Event> gone;
  for (const auto& [handle, event] : m.events.all()) {
    if (event->context == &context) gone.push_back(handle);
  }
  for (const cu::Event handle : gone) m.events.erase(handle, death);
}

}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuStreamCreate(cu::Stream* stream, unsigned flags) {
  return create_stream("cuStreamCreate", stream, flags, 0);
}

CUDASIM_EXPORT Result cuStreamCreateWithPriority(cu::Stream* stream, unsigned flags, int priority) {
  return create_stream("cuStreamCreateWithPriority", stream, flags, priority);
}

// Returns at once; queued work still runs.
CUDASIM_EXPORT Result cuStreamDestroy_v2(cu::Stream handle) {
  return enter("cuStreamDestroy", Need::kDriver, [&](Call& call) {
    require(!is_default_stream(handle), kInvalidHandle);
    const StreamRef stream = find_live(call, call.machine.streams, handle);
    require(stream != nullptr, kInvalidHandle);
    drop_capture(call.machine, stream);
    call.machine.streams.erase(handle, death_by(call));
    stream->context->destroyed.push_back(stream);
    std::erase(stream->context->blocking, stream);
    retire_streams(call.machine, *stream->context);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuStreamQuery(cu::Stream handle) {
  return enter("cuStreamQuery", Need::kContext, [&](Call& call) {
    const StreamRef stream = stream_of(call, handle);
    check_may_wait(call, stream);
    wait_for_stream(call, stream);
    for (const Mark& mark : call.wait) {
      if (mark.reached()) continue;
      call.wait.clear();
      return kNotReady;
    }
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuStreamSynchronize(cu::Stream handle) {
  return enter("cuStreamSynchronize", Need::kContext, [&](Call& call) {
    const StreamRef stream = stream_of(call, handle);
    check_may_wait(call, stream);
    wait_for_stream(call, stream);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuStreamWaitEvent(cu::Stream handle, cu::Event event_handle, unsigned flags) {
  return enter("cuStreamWaitEvent", Need::kContext, [&](Call& call) {
    const StreamRef stream = stream_of(call, handle);
    const EventRef event = event_of(call, event_handle);
    require(flags <= cu::bits(cu::EventWaitFlag::kExternal), kInvalidValue);
    if (flags == cu::bits(cu::EventWaitFlag::kExternal)) {
      capture_event(call, stream, event, cu::GraphNodeType::kWaitEvent);
      return kSuccess;
    }
    if (event->captured.capture) {
      join_capture(call, stream, event->captured);
      return kSuccess;
    }
    if (!event->recorded) return kSuccess;
    // A captured stream must not depend on work outside the capture.
    refuse_capture(*stream, kCaptureIsolation);
    stream->clock.join(event->clock);
    if (!event->mark.reached()) submit(call, stream, {.name = "cuStreamWaitEvent", .after = {event->mark}});
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuLaunchHostFunc(cu::Stream handle, cu::HostFunction function, void* data) {
  return enter("cuLaunchHostFunc", Need::kContext, [&](Call& call) {
    require(function != nullptr, kInvalidValue);
    const StreamRef stream = stream_of(call, handle);
    std::shared_ptr<const NodeParams> params;
    if (stream->capture) params = std::make_shared<const NodeParams>(NodeParams{cu::HostNodeParams{function, data}});
    submit_host_function(call, stream, AfterFault::kSkip, [function, data] { function(data); }, params);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuStreamAddCallback(cu::Stream handle, cu::StreamCallback callback, void* data, unsigned flags) {
  return enter("cuStreamAddCallback", Need::kContext, [&](Call& call) {
    require(callback != nullptr && flags == 0, kInvalidValue);
    const StreamRef stream = stream_of(call, handle);
    refuse_capture(*stream, kCaptureUnsupported);
    // Unlike a host function, a callback is also called after a fault, with the error.
    const ContextRef context = stream->context;
    submit_host_function(call, stream, AfterFault::kCall, [=] { callback(handle, context->error.load(), data); });
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuStreamGetPriority(cu::Stream stream, int* priority) {
  return stream_property("cuStreamGetPriority", stream, priority, [](const StreamRef& s) { return s->priority; });
}

CUDASIM_EXPORT Result cuStreamGetFlags(cu::Stream stream, unsigned* flags) {
  return stream_property("cuStreamGetFlags", stream, flags, [](const StreamRef& s) { return s->flags; });
}

CUDASIM_EXPORT Result cuStreamGetId(cu::Stream stream, unsigned long long* id) {
  return stream_property("cuStreamGetId", stream, id, [](const StreamRef& s) { return s->id; });
}

CUDASIM_EXPORT Result cuStreamGetDevice(cu::Stream stream, cu::Device* device) {
  return stream_property("cuStreamGetDevice", stream, device,
                         [](const StreamRef& s) { return s->context->device->number; });
}

CUDASIM_EXPORT Result cuStreamGetCtx(cu::Stream stream, cu::Context* context) {
  return stream_property("cuStreamGetCtx", stream, context, [](const StreamRef& s) { return s->context->handle; });
}

CUDASIM_EXPORT Result cuStreamGetCtx_v2(cu::Stream stream, cu::Context* context, cu::GreenContext* green) {
  if (green != nullptr) *green = nullptr;
  return cuStreamGetCtx(stream, context);
}

CUDASIM_EXPORT Result cuEventCreate(cu::Event* out, unsigned flags) {
  return enter("cuEventCreate", Need::kContext, [&](Call& call) {
    const unsigned interprocess = cu::bits(cu::EventFlag::kInterprocess);
    require(out != nullptr && flags <= 7, kInvalidValue);
    require((flags & interprocess) == 0 || (flags & cu::bits(cu::EventFlag::kDisableTiming)) != 0, kInvalidValue);
    auto event = std::make_shared<EventState>();
    event->context = call.context.get();
    event->flags = flags;
    *out = call.machine.events.reserve(call.machine.settings.reuse);
    call.machine.events.add(*out, event);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuEventDestroy_v2(cu::Event event) {
  return enter("cuEventDestroy", Need::kDriver, [&](Call& call) {
    event_of(call, event);
    call.machine.events.erase(event, death_by(call));
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuEventRecord(cu::Event event, cu::Stream stream) {
  return record("cuEventRecord", event, stream, 0);
}

CUDASIM_EXPORT Result cuEventRecordWithFlags(cu::Event event, cu::Stream stream, unsigned flags) {
  return record("cuEventRecordWithFlags", event, stream, flags);
}

// Covers the work of all streams of the context, including destroyed ones.
CUDASIM_EXPORT Result cuCtxRecordEvent(cu::Context context_handle, cu::Event handle) {
  return enter("cuCtxRecordEvent", Need::kDriver, [&](Call& call) {
    const ContextRef context = working_context(call, context_handle);
    const EventRef event = event_of(call, handle);
    require(event->context == context.get(), kInvalidHandle);
    check_no_capture(call, *context);
    const StreamRef recorder = recorder_of(context);
    Work work;
    work.delayed = false;  // it is not an operation of a stream
    for (const StreamRef& stream : streams_of(call.machine, *context)) {
      recorder->clock.join(stream->clock);
      const Mark mark = stream->last();
      if (stream != recorder && !mark.reached()) work.after.push_back(mark);
    }
    record_at(call, *event, recorder, std::move(work));
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuCtxWaitEvent(cu::Context context_handle, cu::Event handle) {
  return enter("cuCtxWaitEvent", Need::kDriver, [&](Call& call) {
    const ContextRef context = working_context(call, context_handle);
    const EventRef event = event_of(call, handle);
    check_no_capture(call, *context);
    if (event->captured.capture) {
      invalidate_if_in_progress(call.machine, *event->captured.capture);
      return kCaptureUnsupported;
    }
    if (!event->recorded) return kSuccess;
    context->gate_clock.join(event->clock);
    if (!event->mark.reached()) context->gates.push_back(event->mark);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuEventQuery(cu::Event handle) {
  return enter("cuEventQuery", Need::kContext, [&](Call& call) {
    const EventRef event = event_for_host(call, handle);
    if (!event->recorded) return kSuccess;
    if (!event->mark.reached()) return kNotReady;
    call.machine.checker.host_waited(event->clock);
    return event->mark.stream->context->error.load();
  });
}

CUDASIM_EXPORT Result cuEventSynchronize(cu::Event handle) {
  return enter("cuEventSynchronize", Need::kContext, [&](Call& call) {
    const EventRef event = event_for_host(call, handle);
    if (!event->recorded) return kSuccess;
    call.wait.push_back(event->mark);
    call.order_after(event->clock);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuEventElapsedTime(float* ms, cu::Event start, cu::Event end) { return elapsed(ms, start, end); }
CUDASIM_EXPORT Result cuEventElapsedTime_v2(float* ms, cu::Event start, cu::Event end) {
  return elapsed(ms, start, end);
}
