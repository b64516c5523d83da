// Which context is current on which thread, and how contexts end.
#pragma once

#include <memory>

#include "cudasim/machine/calls.hpp"
#include "cudasim/machine/machine.hpp"

namespace cudasim {

inline constexpr unsigned kContextFlags = 0xff;

// What cuCtxGetLimit says before anything was set, by number.
std::array<std::size_t, 7> standard_limits();

ContextRef current_context(Machine& m);
// The context of a handle; null means the current one. Throws Refusal.
ContextRef context_of(Call& call, cu::Context handle);
// All streams of a context, including those without a handle of their own.
std::vector<StreamRef> streams_of(Machine& m, const ContextState& context);
// Drops destroyed streams whose work is done, and known to be done.
void retire_streams(Machine& m, ContextState& context);
// Frees the streams, events and plain allocations of a context. Its streams must be idle.
void end_context(Machine& m, const ContextRef& context, const Death& death);
// The stream in which cuCtxRecordEvent records.
StreamRef recorder_of(const ContextRef& context);
StreamRef legacy_stream_of(Machine& m, const ContextRef& context);
StreamRef per_thread_stream_of(Machine& m, const ContextRef& context);

}  // namespace cudasim
