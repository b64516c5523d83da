#include "driver/devices.hpp"

#include "driver/context.hpp"

namespace arena {
namespace {

std::string device_name(const Driver& driver, cu::Device device) {
  char name[256] = "";
  driver.check(driver.functions().cuDeviceGetName(name, sizeof name, device), "cuDeviceGetName");
  return name;
}

bool has(const Driver& driver, cu::DeviceAttribute attribute, cu::Device device) {
  int value = 0;
  driver.check(driver.functions().cuDeviceGetAttribute(&value, attribute, device), "cuDeviceGetAttribute");
  return value != 0;
}

// A driver that is older than an attribute rejects it.
bool may_have(const Driver& driver, cu::DeviceAttribute attribute, cu::Device device) {
  int value = 0;
  const cu::Result result = driver.functions().cuDeviceGetAttribute(&value, attribute, device);
  if (result == cu::Result::kInvalidValue) return false;
  driver.check(result, "cuDeviceGetAttribute");
  return value != 0;
}

// Both devices need virtual memory management.
bool can_access(const Driver& driver, int other, cu::Device device) {
  cu::Device peer = 0;
  int can = 0;
  driver.check(driver.functions().cuDeviceGet(&peer, other), "cuDeviceGet");
  driver.check(driver.functions().cuDeviceCanAccessPeer(&can, peer, device), "cuDeviceCanAccessPeer");
  return can != 0 && has(driver, cu::DeviceAttribute::kVirtualMemorySupported, peer);
}

// The devices that can be given access to this one's memory. If the driver fails to describe one of them, that one is
// left out: this device still works.
std::vector<int> peers_of(const Driver& driver, int number, cu::Device device) {
  std::vector<int> peers;
  const int count = driver.device_count();
  for (int other = 0; other < count; ++other) {
    ignore_errors([&] {
      if (other != number && can_access(driver, other, device)) peers.push_back(other);
    });
  }
  return peers;
}

// For memory with the properties that Device::create() uses.
std::size_t granularity_of(const Driver& driver, cu::Device device, bool for_rdma) {
  cu::MemAllocationProp prop{};
  prop.gpu_direct_rdma_capable = for_rdma ? 1 : 0;
  prop.type = cu::MemAllocationType::kPinned;
  prop.location = {cu::MemLocationType::kDevice, device};
  std::size_t bytes = 0;
  driver.check(driver.functions().cuMemGetAllocationGranularity(&bytes, &prop, cu::GranularityOption::kMinimum),
               "cuMemGetAllocationGranularity");
  return bytes;
}

}  // namespace

DeviceInfo describe_device(const Driver& driver, int number) {
  const Functions& call = driver.functions();
  cu::Device device = 0;
  driver.check(call.cuDeviceGet(&device, number), "cuDeviceGet");

  DeviceInfo info;
  info.number = number;
  info.name = device_name(driver, device);
  driver.check(call.cuDeviceTotalMem(&info.total, device), "cuDeviceTotalMem");
  info.virtual_memory = has(driver, cu::DeviceAttribute::kVirtualMemorySupported, device);
  info.integrated = has(driver, cu::DeviceAttribute::kIntegrated, device);
  if (!info.virtual_memory) return info;
  info.rdma = may_have(driver, cu::DeviceAttribute::kRdmaWithVmmSupported, device);
  info.granularity = granularity_of(driver, device, info.rdma);
  info.peers = peers_of(driver, number, device);
  return info;
}

DeviceInfo device_info(const Driver& driver, int number) {
  DeviceInfo info = describe_device(driver, number);
  std::optional<PrimaryContext> context;
  try {
    context.emplace(driver, number);
  } catch (const DriverError& error) {
    info.problem = error.what();
    return info;
  }
  const ContextScope current(driver, context->get());
  std::size_t free = 0, total = 0;
  driver.check(driver.functions().cuMemGetInfo(&free, &total), "cuMemGetInfo");
  info.free = free;
  return info;
}

std::vector<DeviceInfo> device_infos(const Driver& driver) {
  std::vector<DeviceInfo> infos;
  int count = driver.device_count();
  for (int number = 0; number < count; ++number) infos.push_back(device_info(driver, number));
  return infos;
}

}  // namespace arena
