// A CUDA driver, ready to be called: a library that is complete, new enough, initialised and has a device. Does not
// choose the library (select.hpp), and treats NVIDIA's and the simulated one alike, except that it says which it is.
#pragma once

#include <string>

#include "abi/types.hpp"
#include "base/errors.hpp"
#include "driver/functions.hpp"
#include "driver/library.hpp"

namespace arena {

// The oldest driver with everything that the arena calls: CUDA 11.2.
inline constexpr int kOldestVersion = 11020;

// Ends the advice on a driver that cannot be used.
inline constexpr const char* kOrSimulate = "or set ARENA_DRIVER=sim to work on the simulated driver.";

// Why a driver could not be opened. The text is the reason and what to do about it.
class OpenError : public DriverError {
 public:
  OpenError(std::string call, cu::Result code, const std::string& reason, const std::string& advice,
            std::string name = {});
  // The reason alone, one line, without a full stop.
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

// Immutable, so safe to use from any thread. The library stays loaded when the Driver is destroyed.
class Driver {
 public:
  // Throws OpenError.
  explicit Driver(Library library);
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  const Functions& functions() const { return functions_; }
  // The file that was loaded, with links resolved.
  const std::string& path() const { return path_; }
  // As the driver gives it: 13000 for CUDA 13.0.
  int version() const { return version_; }
  bool is_simulated() const { return simulator_error_ != nullptr; }
  int device_count() const;
  // The simulated driver's virtual clock in microseconds, which advances by the price of each call; null for others.
  using Clock = double();
  Clock* virtual_clock() const { return virtual_clock_; }

  // Throws DriverError unless the call succeeded. `call` is the function's name: check(f.cuInit(0), "cuInit").
  void check(cu::Result result, const char* call) const {
    if (result != cu::Result::kSuccess) [[unlikely]]
      fail(result, call);
  }

 private:
  [[noreturn]] void fail(cu::Result result, const char* call) const;
  std::string name_of(cu::Result result) const;
  std::string describe(cu::Result result) const;
  void find_entry();
  void read_version();
  void initialise();
  [[noreturn]] void fail_to_start(cu::Result result, const char* call) const;
  std::string update_advice() const;

  Library library_;
  Functions functions_;
  std::string path_;
  int version_ = 0;
  const char* (*simulator_error_)() = nullptr;  // only the simulated driver has this
  Clock* virtual_clock_ = nullptr;              // and this
};

// 13000 as "CUDA 13.0".
std::string format_version(int version);

}  // namespace arena
