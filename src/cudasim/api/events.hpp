// Events: the point in a stream at which they were last recorded, and the time when it was reached.
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
  CapturedMark captured;  // set if the last record was in a capture
  std::shared_ptr<std::chrono::steady_clock::time_point> time;
};

// Records an event that goes with a launch, when that is done. Throws Refusal.
void record_with_launch(Call& call, cu::Event handle, const StreamRef& stream);

// Queues what a node of a graph does with an event, and returns where it ends. Events are external to a graph: what it
// waits for is where the event was recorded last, when the graph is launched.
Mark submit_event_node(Call& call, const StreamRef& stream, EventState& event, Work work);

void forget_events(Machine& m, const ContextState& context, const Death& death);

// Calls a function of the program, unless stop_host_functions() was called. The function may not call the driver.
void call_program(const std::function<void()>& function);

// Work that calls a function of the program. The function knows that all earlier work of the stream is done, and may pass
// that on to other threads, so for the race checker it is a wait of the host: `reached` is what the host has then seen.
Work host_work(std::string_view name, const std::function<void()>& function,
               const std::shared_ptr<const Clock>& reached);

// Stops calling functions of the program, and waits up to a second for running ones.
void stop_host_functions();

}  // namespace cudasim
