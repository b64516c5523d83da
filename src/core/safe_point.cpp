// Moving live data at a moment that the program chose, so that no request has to.
#include <algorithm>
#include <chrono>
#include <thread>

#include "core/arena.hpp"

namespace arena {
namespace {

using std::chrono::steady_clock;

constexpr Granules kPart = 32;  // of the cap: less is not worth it
constexpr std::chrono::microseconds kSleep{20};

}  // namespace

// Far from the cap a request takes new memory, and what is stranded does no harm; unless one has failed for it.
bool Arena::gains_by_moving() const {
  const Granules stranded = backing_->compactable();
  const bool is_scarce = is_near_cap() || backing_->was_refused();
  const bool is_much = is_scarce && kPart * stranded >= in_granules(settings_.cap);
  return stranded > 0 && (wants_moving_ || is_much);
}

// If another thread holds the lock, the arena is in use, so this is not a safe point after all.
bool Arena::needs_safe_point() {
  check_process();
  const std::unique_lock held(mutex_.to_look(), std::try_to_lock);
  return held && !closed_ && gains_by_moving();
}

Bytes Arena::safe_point(std::chrono::nanoseconds budget) {
  const auto deadline = steady_clock::now() + budget;
  Lock held = lock();
  if (!gains_by_moving() || streams_.any_capturing()) return 0;
  const Relaxed relaxed(device_);
  empty_fronts();
  if (!wait_until_idle(held, deadline)) return 0;
  check_still_open(held);
  if (!synchronize_now()) return 0;  // a capture is in the way; the device itself is idle
  backing_->poll();
  const Granules before = backing_->compactable(), reserved = std::min(limit(), backing_->reserved());
  try {
    steady_clock::duration last{};  // what the last one took, and the next may take
    while (steady_clock::now() + last < deadline && backing_->compactable() > 0) {
      const auto begin = steady_clock::now();
      if (!backing_->reback({})) break;
      last = steady_clock::now() - begin;
    }
    wants_moving_ = backing_->compactable() > 0;  // the next safe point goes on
  } catch (const Error&) {
    disown_lost();
    throw;
  }
  if (backing_->reserved() < reserved && limit() < reserved) {  // others are in the headroom: it would not come back
    quietly([&] { backing_->reserve(reserved - backing_->reserved(), [&] { return reserved; }, held); });
  }
  tell_reserved();
  set_fronts();
  check_if_told();
  const Granules after = backing_->compactable();
  return (before - std::min(before, after)) * backing_->granule();
}

// Without the lock while it sleeps. A device that is busy, or waits for this thread, is left alone when the time is up.
// Older drivers can only be waited for to the end.
bool Arena::wait_until_idle(Lock& held, steady_clock::time_point deadline) {
  if (!device_.can_record_context()) return wait_for_device(held);
  const Mark all = streams_.mark(Streams::kEverything);
  Marks marks;
  marks.add(all);
  while (streams_.can_tell(marks, Means::kContexts)) {
    streams_.poll(marks, Means::kContexts);
    if (streams_.reached(all)) return true;
    if (steady_clock::now() >= deadline) return false;
    const Unlocked unlocked(held);
    std::this_thread::sleep_for(kSleep);
  }
  return false;
}

}  // namespace arena
