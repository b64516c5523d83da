#include "core/heap/watching.hpp"

#include <utility>

#include "core/heap/heap.hpp"
#include "core/heap/inspect.hpp"

namespace arena {
namespace {

// An error, such as running out of host memory for a sample, must not reach the program's allocation or free.
template <typename Function>
void without_errors(const Function& function) {
  try {
    function();
  } catch (...) {
  }
}

void add_sample(Heap& heap, Watch::Time at) {
  heap.flush_for_inspection();
  Stats stats = running_counts(heap);
  heap.restore_after_inspection();
  stats.device_free = heap.limits.device_free();
  heap.watch->add({at, stats});
}

// Does not ask the driver: this may run in a free that must not wait.
void keep_moment(Heap& heap) {
  heap.flush_for_inspection();
  Watch::Moment moment{heap.watch->last(), heap.watch->last_on_clock(), {}};
  const bool moves = heap.moves.load(std::memory_order_relaxed);
  try {
    moment.snapshot = take_snapshot(heap, moves ? Moving::kAllowed : Moving::kForbidden);
  } catch (...) {
    heap.restore_after_inspection();
    throw;
  }
  heap.restore_after_inspection();
  heap.watch->keep(std::move(moment));
}

Bytes live_in(const Heap& heap) { return static_cast<Bytes>(heap.tracker.sums().live); }

}  // namespace

void sample_before(Heap& heap, Watch::Trend next, SampleCost cost) {
  Watch& watch = *heap.watch;
  if (!watch.is_turning(next) && cost == SampleCost::kBounded) return;
  const Bytes live = live_in(heap);
  const bool is_peak =
      next == Watch::Trend::kFalling &&
      (cost == SampleCost::kAny ? watch.is_higher(live) : watch.wants_moment(live, heap.blocks.size()));
  if (!is_peak && !watch.wants(watch.last(), live, heap.reserved())) return;
  without_errors([&] {
    add_sample(heap, watch.last());
    if (is_peak) keep_moment(heap);
  });
}

void sample_reserved(Heap& heap) {
  const Watch::Time now = heap.watch->now();
  if (heap.watch->wants(now, live_in(heap), heap.reserved())) without_errors([&] { add_sample(heap, now); });
}

}  // namespace arena
