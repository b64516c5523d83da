// What a driver's devices are. A picture of the moment: nothing here is kept up to date.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "driver/driver.hpp"

namespace arena {

struct DeviceInfo {
  int number = 0;
  std::string name;
  std::size_t total = 0;
  std::size_t free = 0;
  bool virtual_memory = false;
  std::size_t granularity = 0;  // of virtual memory; 0 without it
};

// Starts the device's primary context if nobody has one, which takes time and memory on a real device.
DeviceInfo device_info(const Driver& driver, int number);
std::vector<DeviceInfo> device_infos(const Driver& driver);

}  // namespace arena
