// The functions of cudasim.h for known and unknown memory.
#include "cudasim/machine/values.hpp"

#include <cstring>

#include "cudasim/api/contexts.hpp"
#include "cudasim/cudasim.h"
#include "cudasim/machine/machine.hpp"
#include "cudasim/machine/submit.hpp"

namespace cudasim {
namespace {

static_assert(CUDASIM_UNKNOWN == static_cast<int>(Content::kUnknown));
static_assert(CUDASIM_KNOWN == static_cast<int>(Content::kKnown));
static_assert(CUDASIM_ZERO == static_cast<int>(Content::kZero));

// Runs the body with the machine locked, if values are tracked and there is memory.
template <typename Body>
void tracked(const Body& body) {
  Machine& m = machine();
  if (!m.values.on() || forked()) return;
  const std::lock_guard lock(m.mutex);
  if (!m.space) return;
  try {
    body(m);
  } catch (const std::bad_alloc&) {  // no memory for a mark: then nothing is known
    m.values.forget_all();
  }
}

enum { kDone = 0, kCapturing = 1, kNoStream = 2 };  // what cudasimValuesDrain returns

// What is queued in a stream and not done. Unlike a call, it neither creates a stream nor reports a handle.
int pending_work(Machine& m, cu::Stream handle, std::vector<Mark>& pending) {
  const auto add = [&](StreamState* stream) {
    if (stream != nullptr && !stream->idle()) pending.push_back(stream->last());
  };
  if (!is_default_stream(handle)) {
    StreamState* stream = m.streams.peek(handle);
    if (stream == nullptr || !stream->context->alive) return kNoStream;
    add(stream);
    return stream->capture ? kCapturing : kDone;
  }
  const ContextRef context = current_context(m);
  if (!context || !context->alive) return kNoStream;
  if (handle == cu::per_thread_stream()) {
    const auto own = context->per_thread.find(this_thread());
    if (own == context->per_thread.end()) return kDone;
    add(own->second.stream.get());
    return own->second.stream->capture ? kCapturing : kDone;
  }
  add(context->legacy.get());  // which cannot be captured
  each_with_legacy(*context, [&](const StreamRef& other) { add(other.get()); });
  return kDone;
}

int drain(cu::Stream handle) {
  Machine& m = machine();
  if (forked() || in_host_function()) return kNoStream;
  std::vector<Mark> pending;
  {
    const std::lock_guard lock(m.mutex);
    if (!m.initialised || m.ending) return kNoStream;
    const int found = pending_work(m, handle, pending);
    if (found != kDone) return found;
  }
  for (const Mark& mark : pending) mark.wait();
  return kDone;
}

}  // namespace
}  // namespace cudasim

using namespace cudasim;

void cudasimValuesEnable(int on) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  m.settings.values = on != 0;
  m.values.turn(m.settings.values);
}

int cudasimValuesEnabled(void) { return machine().values.on() ? 1 : 0; }

void cudasimValuesMark(unsigned long long address, unsigned long long size, int state) {
  if (state < CUDASIM_UNKNOWN || state > CUDASIM_ZERO) return;
  tracked([&](Machine& m) { m.values.mark(*m.space, address, size, static_cast<Content>(state)); });
}

int cudasimValuesQuery(unsigned long long address, unsigned long long size) {
  bool known = false, unknown = false;
  tracked([&](Machine& m) {
    m.values.each_run(*m.space, address, clamped_end(address, size),
                      [&](std::uint64_t, std::uint64_t, Content found, Tracking) {
                        (found == Content::kKnown ? known : unknown) = true;
                      });
  });
  return !unknown ? 1 : known ? 2 : 0;
}

void cudasimValuesRead(unsigned long long address, unsigned long long size, unsigned char* known) {
  if (known == nullptr) return;
  std::memset(known, 1, size);
  tracked([&](Machine& m) {
    const auto show = [&](std::uint64_t begin, std::uint64_t end, Content content, Tracking) {
      if (content != Content::kKnown) std::memset(known + (begin - address), 0, end - begin);
    };
    m.values.each_run(*m.space, address, clamped_end(address, size), show);
  });
}

void cudasimValuesWrite(unsigned long long address, unsigned long long size, const unsigned char* known) {
  if (known == nullptr) return;
  const std::uint64_t end = clamped_end(address, size);
  tracked([&](Machine& m) {
    for (std::uint64_t at = address; at < end;) {
      const bool same = known[at - address] != 0;
      std::uint64_t stop = at + 1;
      while (stop < end && (known[stop - address] != 0) == same) ++stop;
      m.values.mark(*m.space, at, stop - at, same ? Content::kKnown : Content::kZero);
      at = stop;
    }
  });
}

void cudasimValuesSettle(unsigned long long address, unsigned long long size) {
  tracked([&](Machine& m) { m.values.settle(*m.space, address, size); });
}

int cudasimValuesDrain(void* stream) { return drain(static_cast<cu::Stream>(stream)); }

void cudasimValuesEnter(void) { begin_marking_by_caller(); }
void cudasimValuesLeave(void) { end_marking_by_caller(); }

void cudasimValuesExpect(const void* bytes, unsigned long long size) {
  if (bytes == nullptr || size == 0) return;
  const auto* begin = static_cast<const char*>(bytes);
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  expect({begin, begin + size}, m.generation);
}

void cudasimValuesForget(void) { forget_expected(); }

void cudasimValuesOnRead(cudasimUnknownRead callback) { machine().values.listen(callback); }
