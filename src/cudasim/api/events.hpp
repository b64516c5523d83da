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

void forget_events(Machine& m, const ContextState& context, const Death& death);

// Calls no function of the program any more, and waits for those under way, but not for ever.
void stop_host_functions();

}  // namespace cudasim
