#include "core/heap/limits.hpp"

#include <algorithm>
#include <utility>

namespace arena {

bool Limits::is_near_cap() const {
  constexpr Granules kShare = 6;
  const Granules most = cap();
  return kShare * (most - std::min(most, backing_->reserved())) < most;
}

Granules Limits::limit() const { return settings_.headroom > 0 ? limit_with(device_free()) : cap(); }

Granules Limits::limit_with(Bytes device_free) const {
  // Memory on its way here counts as reserved, but the driver counts it as free.
  const Bytes kept = settings_.headroom + backing_->incoming() * backing_->granule();
  const Bytes room = device_free - std::min(device_free, kept);
  return in_granules(std::min(settings_.cap, backing_->reserved() * backing_->granule() + room));
}

// Plain segments go back before a larger one is taken. While other programs are in the headroom, none could be taken: the
// idle ones would be lost for nothing.
Granules Limits::reach() const { return settings_.headroom > 0 ? reach_with(device_free()) : cap(); }

Granules Limits::reach_with(Bytes device_free) const {
  return backing_->is_plain() && device_free < settings_.headroom ? 0 : limit_with(device_free);
}

// Memory on its way here counts as reserved, but is not taken yet.
Bytes Limits::taken() const { return (backing_->reserved() - backing_->incoming()) * backing_->granule(); }

Bytes Limits::device_free() const {
  const Bytes was = last_free_ + last_taken_;
  return was - std::min(was, taken());
}

// What comes or goes meanwhile, or is about to go, may or may not be in the answer: assume that less is free.
void Limits::require_answer(Lock& lock) {
  const Bytes before = taken(), returned = backing_->returned();
  Bytes free = 0;
  {
    const Unlocked unlocked(lock);
    free = device_.free();
  }
  last_free_ = free;
  const Bytes gone = backing_->returned() - returned + backing_->outgoing() * backing_->granule();
  last_taken_ = before - std::min(before, gone);
}

void Limits::ask_device(Lock& lock) {
  ignore_errors([&] { require_answer(lock); });
}

void Limits::ask_device(const Request& request, Lock& lock) {
  if (!std::exchange(request.has_asked, true)) ask_device(lock);
}

void Limits::ask_before_growing(const Request& request, Lock& lock) {
  if (settings_.headroom > 0 && !std::exchange(request.has_asked, true)) require_answer(lock);
}

}  // namespace arena
