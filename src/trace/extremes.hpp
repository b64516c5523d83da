// When the most and the least is live, which a trace tells without any arena.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trace/trace.hpp"

namespace arena {

struct Extremes {
  std::vector<std::uint64_t> events;  // in order: after which the most or the least of a bucket is live
  std::uint64_t highest = 0;          // the first after which the most of all is
};

// A bucket is so many events. With `ended_by`, the number of a failed request, as if that had passed and been the last.
Extremes find_extremes(const Trace& trace, std::uint64_t bucket, std::optional<std::uint64_t> ended_by);

// What an allocation of a size takes, as the arena rounds it.
Bytes rounded(Bytes size);

}  // namespace arena
