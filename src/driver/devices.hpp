// Describes a driver's devices. A snapshot: nothing here is kept up to date.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "driver/driver.hpp"

namespace arena {

struct DeviceInfo {
  int number = 0;
  std::string name;
  std::size_t total = 0;
  std::optional<std::size_t> free;  // unknown if the device refuses a context
  std::string problem;              // why it refuses
  bool virtual_memory = false;
  std::size_t granularity = 0;  // of virtual memory; 0 without it
  bool integrated = false;      // shares the host's memory
  bool rdma = false;            // memory can be created for GPUDirect RDMA
  std::vector<int> peers;       // devices that can access its memory
};

// Needs no context, so it does not start the device, and works while another process uses it exclusively.
DeviceInfo describe_device(const Driver& driver, int number);
// The same with free memory. Starts the device's primary context if it is not active, which takes time and memory on a
// real device.
DeviceInfo device_info(const Driver& driver, int number);
std::vector<DeviceInfo> device_infos(const Driver& driver);

}  // namespace arena
