// NVML: the devices of the simulated driver. A device's handle is the address of its slot. How many devices there are is
// asked without cuInit if possible: PyTorch counts them before it forks, so that its children can still initialise CUDA.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "standins/common/behaviours.hpp"
#include "standins/common/version.hpp"

namespace {

using namespace standins;

constexpr int kUninitialized = 1;  // NVML_ERROR_UNINITIALIZED
constexpr int kBadArgument = 2;    // NVML_ERROR_INVALID_ARGUMENT
constexpr int kUnsupported = 3;    // NVML_ERROR_NOT_SUPPORTED
constexpr int kNotFound = 6;       // NVML_ERROR_NOT_FOUND
constexpr int kTooSmall = 7;       // NVML_ERROR_INSUFFICIENT_SIZE
constexpr int kNoDriver = 9;       // NVML_ERROR_DRIVER_NOT_LOADED
constexpr int kWrongVersion = 25;  // NVML_ERROR_ARGUMENT_VERSION_MISMATCH
constexpr int kMaxDevices = 64;

constexpr int kClockRate = 13, kPciBus = 33, kPciDevice = 34, kPciDomain = 50, kMajor = 75,
              kMinor = 76;  // CUdevice_attribute

std::atomic<int> users{0};  // calls of nvmlInit without their nvmlShutdown
char slots[kMaxDevices];    // their addresses are the handles of devices

int device_of(Word handle) {
  const Word first = reinterpret_cast<Word>(slots);
  return users > 0 && handle >= first && handle < first + kMaxDevices ? static_cast<int>(handle - first) : -1;
}

int count_devices() {
  using Count = int (*)(int* count);
  using Setting = std::size_t (*)(const char* setting, char* text, std::size_t size);
  using Initialise = int (*)(unsigned flags);
  int devices = 0;
  const auto count = driver_function<Count>("cuDeviceGetCount");
  if (count != nullptr && count(&devices) == 0) return devices;
  char text[16] = "";
  const auto setting = driver_function<Setting>("cudasimGet");
  if (setting != nullptr && setting("devices", text, sizeof text) < sizeof text) return std::atoi(text);
  const auto initialise = driver_function<Initialise>("cuInit");
  if (initialise == nullptr || initialise(0) != 0 || count(&devices) != 0) return 0;
  return devices;
}

// A driver function about a device. cuInit is called first: it does nothing the second time.
template <class Function>
Function initialised(const char* name) {
  using Initialise = int (*)(unsigned flags);
  const auto initialise = driver_function<Initialise>("cuInit");
  return initialise != nullptr && initialise(0) == 0 ? driver_function<Function>(name) : nullptr;
}

int attribute(int device, int name) {
  using GetAttribute = int (*)(int* value, int attribute, int device);
  const auto get = initialised<GetAttribute>("cuDeviceGetAttribute");
  int value = 0;
  return get != nullptr && get(&value, name, device) == 0 ? value : 0;
}

std::string uuid_of(int device) {
  using GetUuid = int (*)(unsigned char* uuid, int device);
  auto get = initialised<GetUuid>("cuDeviceGetUuid_v2");
  if (get == nullptr) get = initialised<GetUuid>("cuDeviceGetUuid");
  unsigned char uuid[16] = {};
  if (get != nullptr) get(uuid, device);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char byte[4];
    std::snprintf(byte, sizeof byte, "%02x", uuid[i]);
    text += (i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "") + std::string(byte);
  }
  return text;
}

int copy_text(const std::string& text, Word buffer, Word size) {
  if (buffer == 0) return kBadArgument;
  if (text.size() >= static_cast<unsigned>(size)) return kTooSmall;
  std::memcpy(reinterpret_cast<void*>(buffer), text.c_str(), text.size() + 1);
  return 0;
}

struct Memory {
  std::uint64_t total, free, used;
};

bool read_memory(int device, Memory& memory) {
  using Total = int (*)(std::size_t* bytes, int device);
  using Used = unsigned long long (*)(int device);
  const auto total = initialised<Total>("cuDeviceTotalMem_v2");
  const auto used = driver_function<Used>("cudasimUsed");
  std::size_t bytes = 0;
  if (total == nullptr || total(&bytes, device) != 0) return false;
  memory.total = bytes;
  memory.used = used == nullptr ? 0 : used(device);
  memory.free = memory.total - memory.used;
  return true;
}

// The part that all versions of nvmlGpuFabricInfo have. The state 0 means that there is no fabric, which is not an error:
// PyTorch's expandable segments ask, and take an error for a broken driver.
struct Fabric {
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
};

int describe_fabric(Word handle, Fabric* fabric) {
  if (device_of(handle) < 0 || fabric == nullptr) return users > 0 ? kBadArgument : kUninitialized;
  *fabric = {};
  return 0;
}

int start() {
  if (driver_function("cuInit") == nullptr) return kNoDriver;
  ++users;
  return 0;
}

int get_count(Word count) {
  if (users == 0) return kUninitialized;
  return write<unsigned>(count, static_cast<unsigned>(count_devices())) ? 0 : kBadArgument;
}

int get_handle(std::int64_t index, Word handle) {
  if (users == 0) return kUninitialized;
  if (index < 0 || index >= count_devices() || index >= kMaxDevices || handle == 0) return kBadArgument;
  write(handle, reinterpret_cast<Word>(slots) + static_cast<Word>(index));
  return 0;
}

int get_handle_by_bus(Word text, Word handle) {
  if (users == 0) return kUninitialized;
  unsigned domain = 0, bus = 0, number = 0;
  if (text == 0) return kBadArgument;
  if (std::sscanf(reinterpret_cast<const char*>(text), "%x:%x:%x", &domain, &bus, &number) != 3) return kNotFound;
  for (int i = 0; i < count_devices(); ++i) {
    if (attribute(i, kPciDomain) == static_cast<int>(domain) && attribute(i, kPciBus) == static_cast<int>(bus) &&
        attribute(i, kPciDevice) == static_cast<int>(number)) {
      return get_handle(i, handle);
    }
  }
  return kNotFound;
}

int driver_version(Word version) {
  if (users == 0) return kUninitialized;
  using Version = int (*)(int* version);
  const auto get = driver_function<Version>("cuDriverGetVersion");
  int value = kCudartVersion;
  if (get != nullptr) get(&value);
  return write(version, value) ? 0 : kBadArgument;
}

const char* error_text(Word result) {
  switch (static_cast<int>(result)) {
    case 0:
      return "Success";
    case kUninitialized:
      return "Uninitialized";
    case kBadArgument:
      return "Invalid Argument";
    case kUnsupported:
      return "Not Supported";
    case kNotFound:
      return "Not Found";
    case kTooSmall:
      return "Insufficient Size";
    case kNoDriver:
      return "Driver Not Loaded";
    case kWrongVersion:
      return "Argument version mismatch";
    default:
      return "Unknown Error";
  }
}

}  // namespace

#define DEVICE(name, N, type, value)                                       \
  STANDIN_FUNCTION(name) {                                                 \
    const int device = device_of(a0);                                      \
    if (device < 0) return users > 0 ? kBadArgument : kUninitialized;      \
    return write<type>(a##N, static_cast<type>(value)) ? 0 : kBadArgument; \
  }
#define UNSUPPORTED(name) \
  STANDIN_FUNCTION(name) { return users > 0 ? kUnsupported : kUninitialized; }

#include "standins/nvml/nvml.def"

STANDIN_FUNCTION(nvmlInit) { return start(); }
STANDIN_FUNCTION(nvmlInit_v2) { return start(); }
STANDIN_FUNCTION(nvmlInitWithFlags) { return start(); }
STANDIN_FUNCTION(nvmlShutdown) {
  if (users == 0) return kUninitialized;
  --users;
  return 0;
}

// The first driver of each CUDA release.
STANDIN_FUNCTION(nvmlSystemGetDriverVersion) {
  return users == 0 ? kUninitialized : copy_text(kCudartVersion < 13000 ? "575.51.03" : "595.45.04", a0, a1);
}
STANDIN_FUNCTION(nvmlSystemGetNVMLVersion) {
  return users == 0 ? kUninitialized : copy_text(kCudartVersion < 13000 ? "12.575.51.03" : "13.595.45.04", a0, a1);
}
STANDIN_FUNCTION(nvmlSystemGetCudaDriverVersion) { return driver_version(a0); }
STANDIN_FUNCTION(nvmlSystemGetCudaDriverVersion_v2) { return driver_version(a0); }
STANDIN_FUNCTION(nvmlDeviceGetCount) { return get_count(a0); }
STANDIN_FUNCTION(nvmlDeviceGetCount_v2) { return get_count(a0); }
STANDIN_FUNCTION(nvmlDeviceGetHandleByIndex) { return get_handle(as_int(a0), a1); }
STANDIN_FUNCTION(nvmlDeviceGetHandleByIndex_v2) { return get_handle(as_int(a0), a1); }
STANDIN_FUNCTION(nvmlDeviceGetHandleByPciBusId) { return get_handle_by_bus(a0, a1); }
STANDIN_FUNCTION(nvmlDeviceGetHandleByPciBusId_v2) { return get_handle_by_bus(a0, a1); }

STANDIN_FUNCTION(nvmlDeviceGetHandleByUUID) {
  if (users == 0) return kUninitialized;
  if (a0 == 0) return kBadArgument;
  for (int i = 0; i < count_devices(); ++i) {
    if (uuid_of(i) == reinterpret_cast<const char*>(a0)) return get_handle(i, a1);
  }
  return kNotFound;
}

STANDIN_FUNCTION(nvmlDeviceGetName) {
  using GetName = int (*)(char* name, int size, int device);
  const int device = device_of(a0);
  if (device < 0) return users > 0 ? kBadArgument : kUninitialized;
  const auto get = initialised<GetName>("cuDeviceGetName");
  char name[256] = "";
  if (get == nullptr || get(name, sizeof name, device) != 0) return kUnsupported;
  return copy_text(name, a1, a2);
}

STANDIN_FUNCTION(nvmlDeviceGetUUID) {
  const int device = device_of(a0);
  if (device < 0) return users > 0 ? kBadArgument : kUninitialized;
  return copy_text(uuid_of(device), a1, a2);
}

// nvmlMemory_t: total, free, used
STANDIN_FUNCTION(nvmlDeviceGetMemoryInfo) {
  const int device = device_of(a0);
  if (device < 0 || a1 == 0) return users > 0 ? kBadArgument : kUninitialized;
  return read_memory(device, *reinterpret_cast<Memory*>(a1)) ? 0 : kUnsupported;
}

// nvmlMemory_v2_t: version, total, reserved, free, used
STANDIN_FUNCTION(nvmlDeviceGetMemoryInfo_v2) {
  const int device = device_of(a0);
  Memory memory{};
  if (device < 0 || a1 == 0) return users > 0 ? kBadArgument : kUninitialized;
  if (!read_memory(device, memory)) return kUnsupported;
  auto* const fields = reinterpret_cast<std::uint64_t*>(a1);
  fields[1] = memory.total;
  fields[2] = 0;
  fields[3] = memory.free;
  fields[4] = memory.used;
  return 0;
}

STANDIN_FUNCTION(nvmlDeviceGetCudaComputeCapability) {
  const int device = device_of(a0);
  if (device < 0) return users > 0 ? kBadArgument : kUninitialized;
  return write(a1, attribute(device, kMajor)) && write(a2, attribute(device, kMinor)) ? 0 : kBadArgument;
}

// nvmlUtilization_t: of the device, of its memory. Nothing is computed.
STANDIN_FUNCTION(nvmlDeviceGetUtilizationRates) {
  if (device_of(a0) < 0) return users > 0 ? kBadArgument : kUninitialized;
  return write<std::uint64_t>(a1, 0) ? 0 : kBadArgument;
}

STANDIN_FUNCTION(nvmlDeviceGetGpuFabricInfo) { return describe_fabric(a0, reinterpret_cast<Fabric*>(a1)); }

// A version is the size of the struct and, in the highest byte, its number. The fields after the version are those of
// Fabric and then of its health.
STANDIN_FUNCTION(nvmlDeviceGetGpuFabricInfoV) {
  constexpr unsigned kSecond = (2u << 24) | 36, kThird = (3u << 24) | 40;
  if (device_of(a0) < 0 || a1 == 0) return users > 0 ? kBadArgument : kUninitialized;
  auto* const version = reinterpret_cast<unsigned*>(a1);
  if (*version != kSecond && *version != kThird) return kWrongVersion;
  std::memset(version + 1, 0, (*version & 0xFFFFFF) - sizeof *version);
  return 0;
}

// (device, device, capability, status): 0 if they can access each other, 1 if the chipset does not support it
STANDIN_FUNCTION(nvmlDeviceGetP2PStatus) {
  using CanAccess = int (*)(int* can, int device, int peer);
  const int device = device_of(a0), peer = device_of(a1);
  if (device < 0 || peer < 0) return users > 0 ? kBadArgument : kUninitialized;
  const auto can_access = initialised<CanAccess>("cuDeviceCanAccessPeer");
  int can = 0;
  if (can_access != nullptr) can_access(&can, device, peer);
  return write<int>(a3, can != 0 ? 0 : 1) ? 0 : kBadArgument;
}
