// The driver's contexts, held for as long as a C++ scope. We use primary contexts only, as the CUDA runtime and CuPy
// do, so that what we allocate is theirs to use.
#pragma once

#include "abi/types.hpp"
#include "driver/driver.hpp"

namespace arena {

// Holds one use of a device's primary context, which the driver makes for the first and ends with the last.
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

// Makes a context current on this thread, and what was current before again at the end.
class ContextScope {
 public:
  ContextScope(const Driver& driver, cu::Context context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

}  // namespace arena
