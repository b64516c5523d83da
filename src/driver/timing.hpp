// What single calls of the driver cost on one device: each is made once and timed, and what it took is given back. Owns the
// clock and the queued work that calls are timed beside; statistics are not its business.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "abi/types.hpp"
#include "driver/context.hpp"
#include "driver/driver.hpp"

namespace arena {

struct CallTime {
  const char* call;        // "cuMemCreate"
  std::uint64_t size = 0;  // of the memory that it is about; 0 if its cost does not depend on one
  double microseconds = 0;
  bool loaded = false;  // another stream had queued work when the call began
  bool waited = false;  // and none when it returned
};

// By the monotonic clock of the host, read right before and after the call. The simulated driver has prices instead of
// costs: there it is the virtual clock, plus the time that a call really waited for queued work.
//
// Throws DriverError; a round that fails has given back what it took. For one thread at a time.
class CallTimer {
 public:
  CallTimer(std::shared_ptr<const Driver> driver, int device);
  ~CallTimer();
  CallTimer(const CallTimer&) = delete;
  CallTimer& operator=(const CallTimer&) = delete;

  // Reserving addresses; creating, mapping, opening, unmapping and releasing memory of `size`; freeing the addresses.
  std::vector<CallTime> virtual_round(std::uint64_t size);
  // cuMemAlloc and cuMemFree.
  std::vector<CallTime> plain_round(std::uint64_t size);
  // cuMemGetInfo, recording an event and asking for it.
  std::vector<CallTime> other_round();

  // From here on another stream always has about so many milliseconds of queued work, which writes to `bytes` of memory.
  void begin_load(std::uint64_t bytes, double milliseconds);
  // Waits for that work and frees the memory. Does nothing without load.
  void end_load();
  // Ends the load and lets go of the context, which ends with its last user. After that only this may be called again.
  void close();

  bool has_virtual_clock() const { return driver_->virtual_clock() != nullptr; }

 private:
  class Load;
  cu::Context context() const;
  template <typename Call>
  CallTime time(const char* name, std::uint64_t size, const Call& call);
  double now() const;

  std::shared_ptr<const Driver> driver_;
  int device_;
  std::optional<PrimaryContext> context_;  // until it is closed
  double overhead_ = 0;                    // microseconds that reading the clock takes
  std::unique_ptr<Load> load_;
};

}  // namespace arena
