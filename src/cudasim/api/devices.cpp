// Devices: their number, names and attributes.
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>

#include "cudasim/api/devices.hpp"
#include "cudasim/machine/say.hpp"

namespace cudasim {
namespace {

constexpr int kLastAttribute = 200;  // beyond what any header knows

struct BusId {
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
};

// [domain]:[bus]:[device].[function], with the domain or the function left out; all hexadecimal.
std::optional<BusId> parse_bus_id(std::string_view text) {
  std::vector<unsigned> numbers;
  std::string separators;
  while (true) {
    unsigned number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
    if (error != std::errc{}) return std::nullopt;
    numbers.push_back(number);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.empty()) break;
    separators += text.front();
    text.remove_prefix(1);
  }
  if (separators == "::.") return BusId{numbers[0], numbers[1], numbers[2], numbers[3]};
  if (separators == "::") return BusId{numbers[0], numbers[1], numbers[2], 0};
  if (separators == ":.") return BusId{0, numbers[0], numbers[1], numbers[2]};
  return std::nullopt;
}

bool is_format(cu::ArrayFormat format) {
  using enum cu::ArrayFormat;
  return (cu::bits(format) >= cu::bits(kUnsigned8) && cu::bits(format) <= cu::bits(kUnsigned32)) ||
         (cu::bits(format) >= cu::bits(kSigned8) && cu::bits(format) <= cu::bits(kSigned32)) || format == kHalf ||
         format == kFloat;
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
      say(m.bad_environment);
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
    return print(name, size, "%s", call.machine.settings.card.name.c_str());
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

CUDASIM_EXPORT Result cuDeviceGetP2PAttribute(int* value, cu::P2PAttribute attribute, cu::Device source,
                                              cu::Device target) {
  return enter("cuDeviceGetP2PAttribute", Need::kDriver, [&](Call& call) {
    using enum cu::P2PAttribute;
    require(value != nullptr && cu::bits(attribute) >= 1 && cu::bits(attribute) <= 4, kInvalidValue);
    const int from = call.machine.device(source).number;
    const int to = call.machine.device(target).number;
    require(from != to, kInvalidDevice);
    const bool access = attribute == kAccessSupported && call.machine.settings.can_access_peer(from, to);
    *value = access ? 1 : 0;  // the best rank is 0, too; atomics and arrays need more than peer access
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuDeviceGetByPCIBusId(cu::Device* device, const char* id) {
  return enter("cuDeviceGetByPCIBusId", Need::kDriver, [&](Call& call) {
    require(device != nullptr && id != nullptr, kInvalidValue);
    const auto given = parse_bus_id(id);
    require(given.has_value(), kInvalidValue);
    require(given->domain == 0 && given->slot == 0 && given->function == 0 && given->bus <= kMaxDevices,
            kInvalidDevice);
    *device = call.machine.device(static_cast<int>(given->bus) - 1).number;
    return kSuccess;
  });
}

// Only graphics on Windows have these.
CUDASIM_EXPORT Result cuDeviceGetLuid(char* luid, unsigned* node_mask, cu::Device device) {
  return enter("cuDeviceGetLuid", Need::kDriver, [&](Call& call) {
    require(luid != nullptr && node_mask != nullptr, kInvalidValue);
    call.machine.device(device);
    return kNotSupported;
  });
}

CUDASIM_EXPORT Result cuDeviceComputeCapability(int* major, int* minor, cu::Device device) {
  return enter("cuDeviceComputeCapability", Need::kDriver, [&](Call& call) {
    require(major != nullptr && minor != nullptr, kInvalidValue);
    call.machine.device(device);
    *major = call.machine.settings.card.major;
    *minor = call.machine.settings.card.minor;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuDeviceGetProperties(cu::DevProp* properties, cu::Device number) {
  return enter("cuDeviceGetProperties", Need::kDriver, [&](Call& call) {
    using enum cu::DeviceAttribute;
    require(properties != nullptr, kInvalidValue);
    const DeviceState& device = call.machine.device(number);
    const auto get = [&](cu::DeviceAttribute what) { return attribute_of(call.machine, device, what); };
    *properties = {.max_threads_per_block = get(kMaxThreadsPerBlock),
                   .max_threads_dim = {get(kMaxBlockDimX), get(kMaxBlockDimY), get(kMaxBlockDimZ)},
                   .max_grid_size = {get(kMaxGridDimX), get(kMaxGridDimY), get(kMaxGridDimZ)},
                   .shared_memory_per_block = get(kMaxSharedMemoryPerBlock),
                   .total_constant_memory = get(kTotalConstantMemory),
                   .simd_width = get(kWarpSize),
                   .memory_pitch = get(kMaxPitch),
                   .registers_per_block = get(kMaxRegistersPerBlock),
                   .clock_rate = get(kClockRate),
                   .texture_alignment = get(kTextureAlignment)};
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuDeviceGetTexture1DLinearMaxWidth(std::size_t* width, cu::ArrayFormat format, unsigned channels,
                                                         cu::Device number) {
  return enter("cuDeviceGetTexture1DLinearMaxWidth", Need::kDriver, [&](Call& call) {
    require(width != nullptr && is_format(format), kInvalidValue);
    require(channels == 1 || channels == 2 || channels == 4, kInvalidValue);
    const DeviceState& device = call.machine.device(number);
    const int most = attribute_of(call.machine, device, cu::DeviceAttribute::kTexture1dLinearWidth);
    *width = static_cast<std::size_t>(most);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuDeviceGetExecAffinitySupport(int* supported, cu::ExecAffinityType type, cu::Device device) {
  return enter("cuDeviceGetExecAffinitySupport", Need::kDriver, [&](Call& call) {
    require(supported != nullptr && type == cu::ExecAffinityType::kSmCount, kInvalidValue);
    call.machine.device(device);
    *supported = 0;  // there are no multiprocessors to share out
    return kSuccess;
  });
}

// Nothing writes from outside.
CUDASIM_EXPORT Result cuFlushGPUDirectRDMAWrites(cu::FlushRdmaTarget target, cu::FlushRdmaScope scope) {
  return enter("cuFlushGPUDirectRDMAWrites", Need::kContext, [&](Call& call) {
    require(target == cu::FlushRdmaTarget::kCurrentContext, kInvalidValue);
    require(scope == cu::FlushRdmaScope::kOwner || scope == cu::FlushRdmaScope::kAllDevices, kInvalidValue);
    require(call.machine.settings.rdma != Rdma::kNo, kNotSupported);
    return kSuccess;
  });
}
