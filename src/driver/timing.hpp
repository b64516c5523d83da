// Times single driver calls on one device. Each round makes its calls once and releases what they took. Owns the clock
// and the background work that runs during the calls; statistics are computed elsewhere.
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
  std::uint64_t size = 0;  // bytes that the call works on; 0 if its cost does not depend on a size
  double microseconds = 0;
  bool loaded = false;  // another stream had queued work when the call began ...
  bool waited = false;  // ... and had none left when it returned
};

// Reads the host's monotonic clock right before and after the call. The simulated driver has prices, so there it reads
// the virtual clock and adds the real time that a call waited for queued work.
//
// Throws DriverError; a round that fails releases what it took. Not thread-safe.
class CallTimer {
 public:
  CallTimer(std::shared_ptr<const Driver> driver, int device);
  ~CallTimer();
  CallTimer(const CallTimer&) = delete;
  CallTimer& operator=(const CallTimer&) = delete;

  // Reserves addresses; creates, maps, sets access to, unmaps and releases `size` bytes; frees the addresses.
  std::vector<CallTime> virtual_round(std::uint64_t size);
  // cuMemAlloc and cuMemFree.
  std::vector<CallTime> plain_round(std::uint64_t size);
  // cuMemGetInfo, cuEventRecord and cuEventQuery.
  std::vector<CallTime> other_round();

  // Keeps about `milliseconds` of work queued in another stream from now on, which writes to `bytes` of memory.
  void begin_load(std::uint64_t bytes, double milliseconds);
  // Waits for that work and frees the memory. Does nothing without load.
  void end_load();
  // Ends the load and releases the context. After that only close() may be called.
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
