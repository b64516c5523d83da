// RAII for the driver's contexts. We use primary contexts only, as the CUDA runtime and CuPy do, so that they can use
// what we allocate.
#pragma once

#include "abi/types.hpp"
#include "driver/driver.hpp"

namespace arena {

// Holds one reference to a device's primary context. The driver creates the context for the first and destroys it after
// the last.
class PrimaryContext {
 public:
  PrimaryContext(const Driver& driver, cu::Device device);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  cu::Context get() const { return context_; }

 private:
  const Driver& driver_;
  cu::Device device_;
  cu::Context context_ = nullptr;
};

// Makes a context current on this thread, and restores the previous one at the end.
class ContextScope {
 public:
  ContextScope(const Driver& driver, cu::Context context);
  ~ContextScope();
  bool has_changed() const { return pushed_; }  // whether another context was current, or none
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

}  // namespace arena
