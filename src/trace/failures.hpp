// Requests that failed while the trace was recorded, and whether the program went on.
#pragma once

#include <cstdint>
#include <vector>

#include "trace/trace.hpp"

namespace arena {

struct FailedRequest {
  std::uint64_t event = 0;
  Bytes live = 0;        // when it failed, with sizes rounded as the arena does
  bool retried = false;  // the next allocation of its thread has the same size: the program tried again and got it
  bool is_last = false;  // no thread allocated anything after it
};

// In order.
std::vector<FailedRequest> find_failures(const Trace& trace);

}  // namespace arena
