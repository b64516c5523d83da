#include "trace/extremes.hpp"

#include <algorithm>

#include "trace/by_block.hpp"

namespace arena {
namespace {

constexpr Bytes kLargest = Bytes{1} << 62;  // no arena can serve more, and sums do not overflow

struct Point {
  std::uint64_t event = 0;
  Bytes live = 0;
};

}  // namespace

Bytes rounded(Bytes size) { return std::max(kAlignment, round_up(std::min(size, kLargest), kAlignment)); }

Extremes find_extremes(const Trace& trace, std::uint64_t bucket, std::optional<std::uint64_t> ended_by) {
  const EventStore& events = trace.events();
  const std::uint64_t end = ended_by ? std::min<std::uint64_t>(*ended_by + 1, events.size()) : events.size();
  ByBlock<Bytes> sizes(trace);
  Extremes found;
  Point now, highest, most, least;
  const auto finish = [&] {
    found.events.push_back(std::min(most.event, least.event));
    if (most.event != least.event) found.events.push_back(std::max(most.event, least.event));
  };
  for (now.event = 0; now.event < end; ++now.event) {
    const TraceEvent event = events[now.event];
    if (event.kind == EventKind::kAllocate) {
      now.live -= sizes.take(event.block);  // if the block number is reused
      now.live += sizes.at(event.block) = rounded(event.size);
    } else if (event.kind == EventKind::kFree) {
      now.live -= sizes.take(event.block);
    } else if (now.event == ended_by) {
      now.live += rounded(event.size);
    }
    const bool is_first = now.event % bucket == 0;
    if (is_first && now.event > 0) finish();
    if (is_first || now.live > most.live) most = now;
    if (is_first || now.live < least.live) least = now;
    if (now.live > highest.live) highest = now;
  }
  if (end > 0) finish();
  found.highest = highest.event;
  return found;
}

}  // namespace arena
