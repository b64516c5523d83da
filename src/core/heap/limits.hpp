// How much may be reserved: the cap, and what the headroom leaves of the device.
//
// The driver is slow to say how much the device has left. It is asked once per request at most, without the lock; in between,
// its last answer is corrected by what the arena took and gave back.
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
  // How many granules may be reserved now, or with so much free on the device.
  Granules limit() const;
  Granules limit_with(Bytes device_free) const;
  // The same after giving back what is idle.
  Granules reach() const;
  Granules reach_with(Bytes device_free) const;

  Bytes device_free() const;  // as far as is known
  // Ask the driver, without the lock. `ask_device` ignores errors: a driver that fails to answer does not keep the arena from
  // working. The others ask once per request, `ask_before_growing` only if there is a headroom, which must stay free.
  void ask_device(Lock& lock);
  void ask_device(const Request& request, Lock& lock);
  void ask_before_growing(const Request& request, Lock& lock);

 private:
  Bytes taken() const;  // from the device, by now
  void require_answer(Lock& lock);

  const Device& device_;
  const ArenaSettings& settings_;
  const std::unique_ptr<Backing>& backing_;
  Bytes last_free_, last_taken_ = 0;  // on the device, and by the arena, when the driver was last asked
};

}  // namespace arena
