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
  // Incoming memory counts as reserved, but the driver still counts it as free.
  const Bytes kept = settings_.headroom + backing_->incoming() * backing_->granule();
  const Bytes room = device_free - std::min(device_free, kept);
  return in_granules(std::min(settings_.cap, backing_->reserved() * backing_->granule() + room));
}

// Idle plain segments are released before a larger one is taken. While other programs use the headroom, no new segment
// can be taken, so the idle ones would be lost for nothing.
Granules Limits::reachable() const { return settings_.headroom > 0 ? reachable_with(device_free()) : cap(); }

Granules Limits::reachable_with(Bytes device_free) const {
  return backing_->is_plain() && device_free < settings_.headroom ? 0 : limit_with(device_free);
}

Bytes Limits::taken() const { return (backing_->reserved() - backing_->incoming()) * backing_->granule(); }

Bytes Limits::device_free() const {
  const Bytes was = last_free_ + last_taken_;
  return was - std::min(was, taken());
}

// Memory that is taken or released during the call, or is about to be, may or may not be in the answer. Assumes the
// lower value.
void Limits::ask_device_or_throw(Lock& lock) {
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
  ignore_errors([&] { ask_device_or_throw(lock); });
}

void Limits::ask_device(const HeapRequest& request, Lock& lock) {
  if (!std::exchange(request.has_asked_device, true)) ask_device(lock);
}

void Limits::ask_before_growing(const HeapRequest& request, Lock& lock) {
  if (settings_.headroom > 0 && !std::exchange(request.has_asked_device, true)) ask_device_or_throw(lock);
}

}  // namespace arena
