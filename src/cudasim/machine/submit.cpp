#include "cudasim/machine/submit.hpp"

#include "cudasim/api/capture.hpp"
#include "cudasim/api/contexts.hpp"

namespace cudasim {
namespace {

constexpr std::uint64_t kSmallWork = 64 << 10;

bool may_touch(Machine& m, const Mapping& mapping, const Effect& effect) {
  if (effect.by_driver) return true;
  std::uint64_t bits = effect.context->device->bit();
  if (effect.copy)
    bits |= kHostBit;  // memory that the host can access can be copied, even if the device cannot access it
  if (((effect.write ? mapping.writable : mapping.readable) & bits) != 0) return true;
  if (!mapping.plain) return false;
  const Range* range = m.space->find(mapping.address);
  if (range == nullptr || range->kind != RangeKind::kDevice) return false;
  return effect.copy || effect.context->peers.contains(range->context);
}

// The legacy stream and all blocking streams of a context wait for each other.
std::vector<StreamRef> implicit_predecessors(const StreamRef& stream) {
  const ContextRef& context = stream->context;
  std::vector<StreamRef> found;
  if (stream == context->legacy) {
    each_with_legacy(*context, [&](const StreamRef& other) { found.push_back(other); });
  } else if (stream->blocking() && context->legacy) {
    found.push_back(context->legacy);
  }
  return found;
}

// Work waits for the events passed to cuCtxWaitEvent.
void pass_gates(ContextState& context, Clock& clock, Work& work) {
  clock.join(context.gate_clock);
  std::erase_if(context.gates, [](const Mark& mark) { return mark.reached(); });
  work.after.insert(work.after.end(), context.gates.begin(), context.gates.end());
}

void show_to_checker(Machine& m, const StreamRef& stream, const Work& work) {
  const OperationRef operation = m.checker.begin(work.name, stream->actor, stream->clock);
  for (const Effect& effect : work.effects) {
    for (std::uint64_t at = effect.address; at < effect.address + effect.size;) {
      const Mapping& mapping = *m.space->mapping_at(at);
      const std::uint64_t end = std::min(effect.address + effect.size, mapping.end());
      m.checker.touch(operation, stream->clock, mapping.physical->history, at - mapping.address, end - mapping.address,
                      at, effect.write);
      at = end;
    }
  }
}

}  // namespace

bool is_managed_address(Machine& m, std::uint64_t address) {
  return m.space->contains(address) || m.space->find(address) != nullptr;
}

bool locate(Machine& m, const Effect& effect, std::vector<Piece>* pieces) {
  const std::uint64_t end = effect.address + effect.size;
  if (end < effect.address) return false;
  for (std::uint64_t at = effect.address; at < end;) {
    const Mapping* mapping = m.space->mapping_at(at);
    if (mapping == nullptr || !may_touch(m, *mapping, effect)) return false;
    const std::uint64_t stop = std::min(end, mapping->end());
    // A plain allocation ends at its requested size. Not checked when queued work runs: its memory may have been freed
    // in stream order since then, and even reused.
    if (mapping->plain && pieces == nullptr) {
      const Range* range = m.space->find(at);
      if (range == nullptr || range->freed || end > range->address + range->size) return false;
    }
    const Physical& physical = *mapping->physical;
    if (pieces != nullptr) pieces->push_back({physical.data(at - mapping->address), stop - at, physical.store});
    at = stop;
  }
  return true;
}

bool is_default_stream(cu::Stream handle) {
  return handle == nullptr || handle == cu::legacy_stream() || handle == cu::per_thread_stream();
}

StreamRef stream_of(Call& call, cu::Stream handle) {
  require(call.context != nullptr, kInvalidContext);
  if (handle == nullptr) {
    handle = null_stream_is_per_thread() ? cu::per_thread_stream() : cu::legacy_stream();
  }
  if (handle == cu::legacy_stream()) return legacy_stream_of(call.machine, call.context);
  if (handle == cu::per_thread_stream()) return per_thread_stream_of(call.machine, call.context);
  StreamRef stream = find_live(call, call.machine.streams, handle);
  require(stream != nullptr && stream->context->alive, kInvalidHandle);
  const Result failed = stream->context->error.load();
  require(failed == kSuccess, failed);
  return stream;
}

Mark submit(Call& call, const StreamRef& stream, Work work) {
  Machine& m = call.machine;
  for (const Effect& effect : work.effects) require(locate(m, effect, nullptr), kIllegalAddress);
  if (stream->capture) {
    record_work(call, stream, std::move(work));
    return {stream, 0};
  }
  const std::vector<StreamRef> before = implicit_predecessors(stream);
  for (const StreamRef& other : before) refuse_capture(*other, kCaptureImplicit);
  for (const StreamRef& other : before) {
    const Mark mark = other->last();
    if (!mark.reached()) work.after.push_back(mark);
    stream->clock.join(other->clock);
  }
  pass_gates(*stream->context, stream->clock, work);
  if (m.checker.on()) show_to_checker(m, stream, work);
  if (work.track && m.values.on()) work.track(call, work);
  const std::uint64_t delay = work.delayed ? m.settings.next_delay() : 0;
  // Work without effect in an idle stream is already done.
  if (!work.run && delay == 0 && work.after.empty() && stream->idle()) return stream->last();
  if (!work.run) work.run = std::move(work.if_queued);
  const bool small = work.bytes <= kSmallWork && !work.on_worker;
  Task task{
      .run = std::move(work.run), .after = std::move(work.after), .delay_us = delay, .even_failed = work.even_failed};
  const auto pushed = stream->push(std::move(task), small);
  if (pushed.run_here) call.run_inline = stream;
  return pushed.mark;
}

void wait_for_stream(Call& call, const StreamRef& stream) {
  call.context = stream->context;
  call.wait_for(stream);
  if (stream != stream->context->legacy) return;
  for (const StreamRef& other : implicit_predecessors(stream)) {
    refuse_capture(*other, kCaptureImplicit);
    call.wait_for(other);
  }
}

}  // namespace cudasim
