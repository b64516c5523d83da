// Asking a driver about its devices.
#include "driver/devices.hpp"

#include "driver/context.hpp"

namespace arena {
namespace {

std::string device_name(const Driver& driver, cu::Device device) {
  char name[256] = "";
  driver.check(driver.functions().cuDeviceGetName(name, sizeof name, device), "cuDeviceGetName");
  return name;
}

bool has_virtual_memory(const Driver& driver, cu::Device device) {
  int value = 0;
  driver.check(driver.functions().cuDeviceGetAttribute(&value, cu::DeviceAttribute::kVirtualMemorySupported, device),
               "cuDeviceGetAttribute");
  return value != 0;
}

std::size_t granularity_of(const Driver& driver, cu::Device device) {
  cu::MemAllocationProp prop{};
  prop.type = cu::MemAllocationType::kPinned;
  prop.location = {cu::MemLocationType::kDevice, device};
  std::size_t bytes = 0;
  driver.check(driver.functions().cuMemGetAllocationGranularity(&bytes, &prop, cu::GranularityOption::kMinimum),
               "cuMemGetAllocationGranularity");
  return bytes;
}

}  // namespace

DeviceInfo device_info(const Driver& driver, int number) {
  const Functions& call = driver.functions();
  cu::Device device = 0;
  driver.check(call.cuDeviceGet(&device, number), "cuDeviceGet");

  DeviceInfo info;
  info.number = number;
  info.name = device_name(driver, device);
  info.virtual_memory = has_virtual_memory(driver, device);
  driver.check(call.cuDeviceTotalMem(&info.total, device), "cuDeviceTotalMem");

  PrimaryContext context(driver, device);
  ContextScope current(driver, context.get());
  if (info.virtual_memory) info.granularity = granularity_of(driver, device);
  std::size_t total = 0;
  driver.check(call.cuMemGetInfo(&info.free, &total), "cuMemGetInfo");
  return info;
}

std::vector<DeviceInfo> device_infos(const Driver& driver) {
  std::vector<DeviceInfo> infos;
  int count = driver.device_count();
  for (int number = 0; number < count; ++number) infos.push_back(device_info(driver, number));
  return infos;
}

}  // namespace arena
