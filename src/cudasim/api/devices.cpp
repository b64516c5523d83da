// Devices: their number, names and attributes.
#include <cstdio>
#include <cstring>

#include "cudasim/machine/machine.hpp"

namespace cudasim {
namespace {

constexpr int kLastAttribute = 200;  // higher than in any header

// A device with compute capability 8.0. Attributes that do not matter to memory are 0.
int attribute_of(const Machine& m, const DeviceState& device, cu::DeviceAttribute what) {
  using enum cu::DeviceAttribute;
  switch (what) {
    case kMaxThreadsPerBlock:
    case kMaxBlockDimX:
    case kMaxBlockDimY:
      return 1024;
    case kMaxBlockDimZ:
      return 64;
    case kMaxGridDimX:
      return 0x7fffffff;
    case kMaxGridDimY:
    case kMaxGridDimZ:
      return 65535;
    case kMaxSharedMemoryPerBlock:
      return 48 << 10;
    case kTotalConstantMemory:
      return 64 << 10;
    case kWarpSize:
      return 32;
    case kMaxRegistersPerBlock:
    case kMaxRegistersPerMultiprocessor:
      return 64 << 10;
    case kClockRate:
      return 1'410'000;
    case kMemoryClockRate:
      return 1'215'000;
    case kMemoryBusWidth:
      return 5120;
    case kL2CacheSize:
      return 40 << 20;
    case kMultiprocessorCount:
      return 108;
    case kMaxThreadsPerMultiprocessor:
      return 2048;
    case kMaxSharedMemoryPerMultiprocessor:
      return 164 << 10;
    case kAsyncEngineCount:
      return 3;
    case kPciBusId:
      return device.number + 1;
    case kPciDeviceId:
    case kPciDomainId:
      return 0;
    case kComputeCapabilityMajor:
      return 8;
    case kComputeCapabilityMinor:
      return 0;
    case kHostNumaId:
      return -1;
    case kGpuOverlap:
    case kCanMapHostMemory:
    case kConcurrentKernels:
    case kUnifiedAddressing:
    case kStreamPrioritiesSupported:
    case kManagedMemory:
    case kConcurrentManagedAccess:
    case kCanUseHostPointerForRegistered:
    case kHostRegisterSupported:
    case kMemoryPoolsSupported:
      return 1;
    case kVirtualMemorySupported:
    case kPosixHandleSupported:
      return m.settings.vmm ? 1 : 0;
    case kIntegrated:
      return m.settings.integrated ? 1 : 0;
    case kComputeMode: {
      const bool exclusive = m.settings.is_exclusive(device.number);
      return static_cast<int>(cu::bits(exclusive ? cu::ComputeMode::kExclusiveProcess : cu::ComputeMode::kDefault));
    }
    case kRdmaWithVmmSupported:
      return m.settings.vmm && m.settings.rdma != Rdma::kNo ? 1 : 0;
    case kMempoolSupportedHandleTypes:
      return 0;
    case kHostMemoryPoolsSupported:
      return m.settings.version >= 13000 ? 1 : 0;
  }
  return 0;
}

Result get_uuid(cu::Uuid* uuid, int number) {
  return enter("cuDeviceGetUuid", Need::kDriver, [&](Call& call) {
    require(uuid != nullptr, kInvalidValue);
    const DeviceState& device = call.machine.device(number);
    std::memcpy(uuid->bytes, "simulated device", sizeof uuid->bytes);
    uuid->bytes[15] = static_cast<unsigned char>(device.number);
    return kSuccess;
  });
}

template <typename... Args>
Result print(char* out, int size, const char* format, Args... args) {
  require(out != nullptr && size > 0, kInvalidValue);
  std::snprintf(out, static_cast<std::size_t>(size), format, args...);
  return kSuccess;
}

}  // namespace
}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuInit(unsigned flags) {
  return enter("cuInit", Need::kNothing, [&](Call& call) {
    Machine& m = call.machine;
    require(flags == 0, kInvalidValue);
    if (!m.bad_environment.empty()) {
      std::fprintf(stderr, "cudasim: %s\n", m.bad_environment.c_str());
      return kInvalidValue;
    }
    require(!m.ending, kDeinitialized);
    require(m.settings.devices > 0, kNoDevice);
    if (!m.initialised) m.start();
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuDriverGetVersion(int* version) {
  return enter("cuDriverGetVersion", Need::kNothing, [&](Call& call) {
    require(version != nullptr, kInvalidValue);
    *version = call.machine.settings.version;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuDeviceGetCount(int* count) {
  return enter("cuDeviceGetCount", Need::kDriver, [&](Call& call) {
    require(count != nullptr, kInvalidValue);
    *count = static_cast<int>(call.machine.devices.size());
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuDeviceGet(cu::Device* device, int ordinal) {
  return enter("cuDeviceGet", Need::kDriver, [&](Call& call) {
    require(device != nullptr, kInvalidValue);
    *device = call.machine.device(ordinal).number;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuDeviceGetName(char* name, int size, cu::Device device) {
  return enter("cuDeviceGetName", Need::kDriver, [&](Call& call) {
    call.machine.device(device);
    return print(name, size, "%s", "Simulated CUDA device");
  });
}

CUDASIM_EXPORT Result cuDeviceGetPCIBusId(char* id, int size, cu::Device device) {
  return enter("cuDeviceGetPCIBusId", Need::kDriver,
               [&](Call& call) { return print(id, size, "0000:%02x:00.0", call.machine.device(device).number + 1); });
}

CUDASIM_EXPORT Result cuDeviceGetUuid(cu::Uuid* uuid, cu::Device device) { return get_uuid(uuid, device); }
CUDASIM_EXPORT Result cuDeviceGetUuid_v2(cu::Uuid* uuid, cu::Device device) { return get_uuid(uuid, device); }

CUDASIM_EXPORT Result cuDeviceGetAttribute(int* value, cu::DeviceAttribute attribute, cu::Device device) {
  return enter("cuDeviceGetAttribute", Need::kDriver, [&](Call& call) {
    require(value != nullptr && cu::bits(attribute) > 0 && cu::bits(attribute) <= kLastAttribute, kInvalidValue);
    *value = attribute_of(call.machine, call.machine.device(device), attribute);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuDeviceTotalMem_v2(std::size_t* bytes, cu::Device device) {
  return enter("cuDeviceTotalMem", Need::kDriver, [&](Call& call) {
    require(bytes != nullptr, kInvalidValue);
    *bytes = call.machine.device(device).total;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuDeviceCanAccessPeer(int* can, cu::Device device, cu::Device peer) {
  return enter("cuDeviceCanAccessPeer", Need::kDriver, [&](Call& call) {
    require(can != nullptr, kInvalidValue);
    const int from = call.machine.device(device).number;
    const int to = call.machine.device(peer).number;
    *can = call.machine.settings.can_access_peer(from, to) ? 1 : 0;
    return kSuccess;
  });
}
