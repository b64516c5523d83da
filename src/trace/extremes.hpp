// When the most and the least is live. A trace shows that without an arena.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trace/trace.hpp"

namespace arena {

struct Extremes {
  std::vector<std::uint64_t> events;  // after which the most or the least of a bucket is live, in order
  std::uint64_t highest = 0;          // the first event after which the most of all is live
};

// `bucket` is a number of events. `ended_by` is a failed request: it counts as if it had succeeded and been the last
// event.
Extremes find_extremes(const Trace& trace, std::uint64_t bucket, std::optional<std::uint64_t> ended_by);

// The size of an allocation as the arena rounds it.
Bytes rounded(Bytes size);

}  // namespace arena
