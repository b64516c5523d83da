// The few things that a library does through the driver: it clears status words in device memory, and asks about the
// device. Whichever libcuda.so.1 the process has loaded is used. Where there is none, nothing is done.
#pragma once

#include <cstddef>
#include <cstdint>

#include "standins/common/objects.hpp"

namespace standins {

void* driver_function(const char* name);  // null if no driver is loaded, or if it does not have the function

template <class Function>
Function driver_function(const char* name) {
  return reinterpret_cast<Function>(driver_function(name));
}

int device_attribute(int number);  // a CUdevice_attribute of the first device, or 0
int compute_capability();          // 75 for 7.5, or 0

// Programs read a status (devInfo of cuSOLVER) after the call. No kernel writes it, so it is cleared in stream order:
// what an earlier owner of that memory left there would look like a failure. False if the driver refuses.
bool clear_device_ints(const Object& handle, Word address, std::int64_t count);

}  // namespace standins
