// Requests that failed while the trace was recorded, and whether the program went on.
#pragma once

#include <cstdint>
#include <vector>

#include "trace/trace.hpp"

namespace arena {

struct FailedRequest {
  std::uint64_t event = 0;
  Bytes live = 0;        // when it failed, as the arena rounds sizes
  bool retried = false;  // the next allocation of its thread is of the same size: the program got it after all
  bool is_last = false;  // nothing is allocated after it, by any thread
};

// In order.
std::vector<FailedRequest> find_failures(const Trace& trace);

}  // namespace arena
