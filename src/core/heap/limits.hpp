// How much may be reserved: up to the cap, and so that the headroom stays free on the device.
//
// Asking the driver how much is free is slow. So it is asked at most once per request, without the lock. Between calls,
// the last answer is corrected by what the arena took and released.
#pragma once

#include <memory>

#include "core/backing/backing.hpp"
#include "core/heap/request.hpp"
#include "core/heap/settings.hpp"
#include "core/locks.hpp"
#include "driver/device.hpp"

namespace arena {

class Limits {
 public:
  Limits(const Device& device, const ArenaSettings& settings, const std::unique_ptr<Backing>& backing)
      : device_(device), settings_(settings), backing_(backing), last_free_(device.free()) {}

  Granules in_granules(Bytes size) const { return backing_->count(size); }
  Granules cap() const { return in_granules(settings_.cap); }
  bool is_near_cap() const;
  // How many granules may be reserved now, or if the device has `device_free` bytes left.
  Granules limit() const;
  Granules limit_with(Bytes device_free) const;
  // The same if idle memory may be released first.
  Granules reachable() const;
  Granules reachable_with(Bytes device_free) const;

  Bytes device_free() const;  // estimated from the last answer
  // Ask the driver, without the lock. `ask_device` ignores errors: the arena works without an answer. With a request,
  // they ask once per request. `ask_before_growing` asks only if there is a headroom, and throws, because that must
  // stay free.
  void ask_device(Lock& lock);
  void ask_device(const HeapRequest& request, Lock& lock);
  void ask_before_growing(const HeapRequest& request, Lock& lock);

 private:
  Bytes taken() const;  // from the device: reserved without incoming memory
  void ask_device_or_throw(Lock& lock);

  const Device& device_;
  const ArenaSettings& settings_;
  const std::unique_ptr<Backing>& backing_;
  Bytes last_free_, last_taken_ = 0;  // device_free and taken() when the driver was last asked
};

}  // namespace arena
