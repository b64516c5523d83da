#include "trace/failures.hpp"

#include "trace/by_block.hpp"
#include "trace/extremes.hpp"
#include "trace/untrusted_map.hpp"

namespace arena {

std::vector<FailedRequest> find_failures(const Trace& trace) {
  const EventStore& events = trace.events();
  std::vector<FailedRequest> found;
  UntrustedMap<std::vector<std::size_t>> open;  // by thread: failures since its last allocation
  ByBlock<Bytes> sizes(trace);
  Bytes live = 0;
  std::uint64_t last_allocation = 0;
  for (std::uint64_t i = 0; i < events.size(); ++i) {
    const TraceEvent event = events[i];
    if (event.kind == EventKind::kFree) {
      live -= sizes.take(event.block);
    } else if (event.kind == EventKind::kFailure) {
      open[event.thread].push_back(found.size());
      found.push_back({.event = i, .live = live});
    } else if (event.kind == EventKind::kAllocate) {
      live -= sizes.take(event.block);  // if the block number is reused
      live += sizes.at(event.block) = rounded(event.size);
      last_allocation = i;
      if (open.empty()) continue;
      const auto it = open.find(event.thread);
      if (it == open.end()) continue;
      for (const std::size_t failed : it->second) {
        found[failed].retried = events[found[failed].event].size == event.size;
      }
      open.erase(it);
    }
  }
  for (FailedRequest& failed : found) failed.is_last = failed.event > last_allocation;
  return found;
}

}  // namespace arena
