// Taking and giving back contexts. Giving back reports nothing: it happens while errors are on their way, too.
#include "driver/context.hpp"

namespace arena {

PrimaryContext::PrimaryContext(const Driver& driver, cu::Device device) : driver_(driver), device_(device) {
  driver_.check(driver_.functions().cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
}

PrimaryContext::~PrimaryContext() { driver_.functions().cuDevicePrimaryCtxRelease(device_); }

// Mostly it is the current one already, as in every program on the CUDA runtime.
ContextScope::ContextScope(const Driver& driver, cu::Context context) : driver_(driver) {
  cu::Context current = nullptr;
  driver_.check(driver_.functions().cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  if (current == context) return;
  driver_.check(driver_.functions().cuCtxPushCurrent(context), "cuCtxPushCurrent");
  pushed_ = true;
}

ContextScope::~ContextScope() {
  cu::Context ours = nullptr;
  if (pushed_) driver_.functions().cuCtxPopCurrent(&ours);
}

}  // namespace arena
