// Events: where in which stream they were last recorded, and when that was reached.
#pragma once

#include <chrono>
#include <memory>

#include "cudasim/api/capture.hpp"
#include "cudasim/machine/machine.hpp"

namespace cudasim {

struct EventState {
  const ContextState* context = nullptr;
  unsigned flags = 0;
  bool recorded = false;
  Mark mark;
  Clock clock;
  CapturedMark captured;  // set while the last record was in a capture
  std::shared_ptr<std::chrono::steady_clock::time_point> time;
};

// Records an event that goes with a launch, when that is done. Throws Refusal.
void record_with_launch(Call& call, cu::Event handle, const StreamRef& stream);

void forget_events(Machine& m, const ContextState& context, const Death& death);

// Calls a function of the program, which may not call the driver; or does not, if none is to be called any more.
void call_program(const std::function<void()>& function);

// Work that calls a function of the program. Who is called knows that all before it in the stream is done, and may tell
// others: `reached` is what the host knows then.
Work host_work(std::string_view name, const std::function<void()>& function,
               const std::shared_ptr<const Clock>& reached);

// Calls no function of the program any more, and waits for those under way, but not for ever.
void stop_host_functions();

}  // namespace cudasim
