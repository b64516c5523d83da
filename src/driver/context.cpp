// Taking and giving back contexts. Giving back reports nothing: it happens while errors are on their way, too.
#include "driver/context.hpp"

namespace arena {

PrimaryContext::PrimaryContext(const Driver& driver, cu::Device device) : driver_(driver), device_(device) {
  driver_.check(driver_.functions().cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
}

PrimaryContext::~PrimaryContext() { driver_.functions().cuDevicePrimaryCtxRelease(device_); }

ContextScope::ContextScope(const Driver& driver, cu::Context context) : driver_(driver) {
  driver_.check(driver_.functions().cuCtxPushCurrent(context), "cuCtxPushCurrent");
}

ContextScope::~ContextScope() {
  cu::Context ours = nullptr;
  driver_.functions().cuCtxPopCurrent(&ours);
}

}  // namespace arena
