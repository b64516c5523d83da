// Destructors report nothing: they also run while an exception propagates. A failed call is tried a second time, or a
// thread (or the process) would keep a context that it did not ask for.
#include "driver/context.hpp"

namespace arena {

PrimaryContext::PrimaryContext(const Driver& driver, cu::Device device) : driver_(driver), device_(device) {
  driver_.check(driver_.functions().cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
}

PrimaryContext::~PrimaryContext() {
  const auto release = [&] { return driver_.functions().cuDevicePrimaryCtxRelease(device_); };
  if (release() != cu::Result::kSuccess) release();
}

// Usually it is already current, as in every program on the CUDA runtime.
ContextScope::ContextScope(const Driver& driver, cu::Context context) : driver_(driver) {
  cu::Context current = nullptr;
  driver_.check(driver_.functions().cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  if (current == context) return;
  driver_.check(driver_.functions().cuCtxPushCurrent(context), "cuCtxPushCurrent");
  pushed_ = true;
}

ContextScope::~ContextScope() {
  if (!pushed_) return;
  cu::Context ours = nullptr;
  const auto pop = [&] { return driver_.functions().cuCtxPopCurrent(&ours); };
  if (pop() != cu::Result::kSuccess) pop();
}

}  // namespace arena
