// What devices say of themselves.
#pragma once

#include "cudasim/machine/machine.hpp"

namespace cudasim {

inline constexpr int kMaxPitchBytes = 0x7fffffff;

// The value of an attribute; 0 for those that a device like these does not have.
int attribute_of(const Machine& m, const DeviceState& device, cu::DeviceAttribute what);

}  // namespace cudasim
