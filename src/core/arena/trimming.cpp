#include "core/arena/trimming.hpp"

#include <chrono>

#include "core/arena/waiting.hpp"

namespace arena {

void throw_closed() { throw UsageError("the arena is closed: make another one to allocate from"); }

// Waits for memory that the device is about to be done with.
void trim_to(Heap& heap, Bytes keep, Patience patience, Lock& lock) {
  using namespace std::chrono_literals;
  struct NotifyOnExit {
    std::condition_variable_any& moved;
    ~NotifyOnExit() { moved.notify_all(); }
  };
  heap.flush_caches();
  if (heap.streams.any_capturing()) return;
  heap.backing->poll();
  if (heap.backing->pending() > 0) wait_for_pending(heap, lock, patience == Patience::kLong ? 150ms : 300us);
  const Bytes granule = heap.backing->granule();
  {
    const NotifyOnExit notify{heap.memory_moved};
    heap.backing->trim(round_up(keep, granule) / granule, heap.limits.cap(), lock);
  }
  heap.backing->forget_refusal();  // released memory can be taken again
  heap.emit_reserved();
  heap.update_cache_policy();
  heap.check_if_validating();
}

// Waits only briefly: this may run in a callback that the device waits for.
void trim_over_limit(Heap& heap, Lock& lock) {
  const RelaxedCapture relaxed(heap.device);
  trim_to(heap, heap.closed ? 0 : heap.settings.reserve, Patience::kBrief, lock);
}

void check_still_open(Heap& heap, Lock& lock) {
  if (!heap.closed) return;
  trim_to(heap, 0, Patience::kLong, lock);
  throw_closed();
}

}  // namespace arena
