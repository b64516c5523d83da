// Moving live data: all at once, or at safe points that the program chooses, so that no request has to.
#include <algorithm>
#include <chrono>

#include "core/arena/arena.hpp"
#include "core/arena/trimming.hpp"
#include "core/arena/waiting.hpp"

namespace arena {
namespace {

using std::chrono::steady_clock;

// Far from the cap, requests get new memory and stranded memory does no harm, unless a request has failed because of
// it.
bool gains_by_moving(const Heap& heap) {
  constexpr Granules kPart = 32;  // of the cap: less is not worth moving
  const Granules stranded = heap.backing->compactable();
  const bool is_scarce = heap.limits.is_near_cap() || heap.backing->was_refused();
  const bool is_much = is_scarce && kPart * stranded >= heap.limits.cap();
  return stranded > 0 && (heap.wants_moving || is_much);
}

}  // namespace

bool Arena::is_compactable() {
  check_process();
  const std::lock_guard held(mutex_.for_inspection());
  heap_.flush_for_inspection();
  return heap_.backing->compactable() > 0;
}

void Arena::compact(const QuiescenceCheck& is_quiescent) {
  Lock held = lock();
  constexpr const char* kCaptured = "a stream is being captured: nothing can be moved until the capture ends";
  if (heap_.streams.any_capturing()) throw UsageError(kCaptured);
  heap_.limits.ask_before_growing(HeapRequest{}, held);
  check_still_open(heap_, held);
  if (heap_.events.is_on()) heap_.events.emit({.kind = EventKind::kCompact});
  const RelaxedCapture relaxed(heap_.device);
  heap_.flush_caches();
  if (!synchronize_now(heap_)) throw UsageError(kCaptured);
  if (is_quiescent && !is_quiescent()) throw UsageError("another thread ran and may have given the device work");
  heap_.backing->poll();  // idle memory is the reserve if the device does not return released memory
  try {
    while (heap_.backing->compactable() > 0 && heap_.backing->reback({})) {
    }
  } catch (const Error&) {
    heap_.drop_lost_blocks();
    throw;
  }
  trim_to(heap_, heap_.settings.reserve, Patience::kLong, held);
  check_still_open(heap_, held);
  const Granules kept = heap_.limits.in_granules(heap_.settings.reserve), reserved = heap_.backing->reserved();
  if (reserved < kept) heap_.backing->reserve(kept - reserved, [this] { return heap_.limits.limit(); }, held);
  check_still_open(heap_, held);
  heap_.emit_reserved();
  heap_.update_cache_policy();
}

// If another thread holds the lock, the arena is in use, so this is not a safe point after all.
bool Arena::needs_safe_point() {
  check_process();
  const std::unique_lock held(mutex_.for_inspection(), std::try_to_lock);
  return held && !heap_.closed && gains_by_moving(heap_);
}

Bytes Arena::safe_point(std::chrono::nanoseconds budget) {
  const auto deadline = steady_clock::now() + budget;
  Lock held = lock();
  if (!gains_by_moving(heap_) || heap_.streams.any_capturing()) return 0;
  const RelaxedCapture relaxed(heap_.device);
  heap_.flush_caches();
  if (!wait_until_idle(heap_, held, deadline)) return 0;
  check_still_open(heap_, held);
  if (!synchronize_now(heap_)) return 0;  // a capture prevents it; the device itself is idle
  Backing& backing = *heap_.backing;
  backing.poll();
  const Granules before = backing.compactable(), reserved = std::min(heap_.limits.limit(), backing.reserved());
  try {
    steady_clock::duration last{};  // of the last move: the next may take as long
    while (steady_clock::now() + last < deadline && backing.compactable() > 0) {
      const auto begin = steady_clock::now();
      if (!backing.reback({})) break;
      last = steady_clock::now() - begin;
    }
    heap_.wants_moving = backing.compactable() > 0;  // the next safe point continues
  } catch (const Error&) {
    heap_.drop_lost_blocks();
    throw;
  }
  // Other programs use the headroom, so memory that is released now could not be taken again.
  if (backing.reserved() < reserved && heap_.limits.limit() < reserved) {
    ignore_errors([&] { backing.reserve(reserved - backing.reserved(), [&] { return reserved; }, held); });
  }
  heap_.emit_reserved();
  heap_.update_cache_policy();
  heap_.check_if_validating();
  const Granules after = backing.compactable();
  return (before - std::min(before, after)) * backing.granule();
}

}  // namespace arena
