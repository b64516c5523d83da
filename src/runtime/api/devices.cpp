// Devices: how many, which one is current, what they can do.
#include <algorithm>
#include <cstring>

#include "runtime/exports.hpp"
#include "runtime/kernels.hpp"
#include "runtime/state.hpp"

using namespace cudart;

namespace {

using Properties = rt::DeviceProperties;

Error check_device(const Driver& driver, int device) {
  int count = 0;
  const Error error = error_of(driver.cuDeviceGetCount(&count));
  if (error != Error::kSuccess) return error;
  return device >= 0 && device < count ? Error::kSuccess : Error::kInvalidDevice;
}

// Runs `body` with the primary context of a device, which need not be the current one.
template <typename Body>
Error with_primary_of(int device, const Body& body) {
  return with_context([&](const Driver& driver) {
    cu::Context context = nullptr;
    const Error error = primary_context(driver, device, &context);
    return error == Error::kSuccess ? error_of(body(driver, context)) : error;
  });
}

int attribute(const Driver& driver, int number, int device) {
  int value = 0;
  driver.cuDeviceGetAttribute(&value, number, device);
  return value;  // 0 for what this driver does not know
}

Error read_properties(const Driver& driver, int device, Properties& p) {
  if (const Error error = check_device(driver, device); error != Error::kSuccess) return error;
  std::memset(static_cast<void*>(&p), 0, sizeof p);
  if (const cu::Result named = driver.cuDeviceGetName(p.name, sizeof p.name, device); named != cu::Result::kSuccess) {
    return error_of(named);
  }
  driver.cuDeviceGetUuid_v2(&p.uuid, device);
  driver.cuDeviceTotalMem_v2(&p.total_global_memory, device);
#define RT_PROPERTY(type, ours, theirs, name, number) p.ours = static_cast<type>(attribute(driver, number, device));
#define RT_PROPERTIES(ours, theirs, length, ...) \
  for (int* next = p.ours; const int number : {__VA_ARGS__}) *next++ = attribute(driver, number, device);
#include "abi/runtime/properties.def"
#undef RT_PROPERTY
#undef RT_PROPERTIES
  return Error::kSuccess;
}

Error properties(Properties* out, int device) {
  return with_driver([&](const Driver& driver) {
    return out != nullptr ? read_properties(driver, device, *out) : Error::kInvalidValue;
  });
}

}  // namespace

CUDART_EXPORT Error cudaGetDeviceCount(int* count) {
  return with_driver([&](const Driver& driver) { return driver.cuDeviceGetCount(count); });
}

// The device of the current context, which the driver may have set, or else the one that was chosen.
CUDART_EXPORT Error cudaGetDevice(int* device) {
  return with_driver([&](const Driver& driver) {
    if (device == nullptr) return Error::kInvalidValue;
    const cu::Result result = driver.cuCtxGetDevice(device);
    if (result != cu::Result::kInvalidContext) return error_of(result);
    *device = thread_state().device;
    return Error::kSuccess;
  });
}

CUDART_EXPORT Error cudaSetDevice(int device) {
  return with_driver([&](const Driver& driver) {
    if (const Error error = check_device(driver, device); error != Error::kSuccess) return error;
    thread_state().device = device;
    return enter_primary_context(driver);
  });
}

CUDART_EXPORT Error cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
  constexpr unsigned kFlagsAreValid = 1;
  return with_driver([&](const Driver& driver) {
    if (const Error error = check_device(driver, device); error != Error::kSuccess) return error;
    if (flags > kFlagsAreValid) return Error::kInvalidValue;
    if (flags == kFlagsAreValid) {
      const cu::Result set = driver.cuDevicePrimaryCtxSetFlags_v2(device, device_flags);
      if (set != cu::Result::kSuccess) return error_of(set);
    }
    cu::Context context = nullptr;
    return primary_context(driver, device, &context);
  });
}

// A preference among devices that are all usable here; what is not a device is an error. An empty list restores the
// default.
CUDART_EXPORT Error cudaSetValidDevices(int* devices, int count) {
  return with_driver([&](const Driver& driver) {
    int available = 0;
    if (const cu::Result counted = driver.cuDeviceGetCount(&available); counted != cu::Result::kSuccess) {
      return error_of(counted);
    }
    if (count < 0 || count > available || (count > 0 && devices == nullptr)) return Error::kInvalidValue;
    for (int i = 0; i < count; ++i) {
      if (const Error error = check_device(driver, devices[i]); error != Error::kSuccess) return error;
    }
    thread_state().device = count > 0 ? devices[0] : 0;
    return Error::kSuccess;
  });
}

CUDART_EXPORT Error cudaChooseDevice(int* device, const Properties* wanted) {
  return with_driver([&](const Driver& driver) {
    if (device == nullptr || wanted == nullptr) return Error::kInvalidValue;
    int count = 0;
    if (const cu::Result result = driver.cuDeviceGetCount(&count); result != cu::Result::kSuccess) {
      return error_of(result);
    }
    Properties p;
    for (*device = 0; *device < count; ++*device) {
      if (const Error error = read_properties(driver, *device, p); error != Error::kSuccess) return error;
      if (p.total_global_memory >= wanted->total_global_memory && p.major >= wanted->major) return Error::kSuccess;
    }
    *device = 0;
    return Error::kSuccess;
  });
}

#if CUDART_MAJOR >= 13
CUDART_EXPORT Error cudaGetDeviceProperties(Properties* out, int device) { return properties(out, device); }
#else
CUDART_EXPORT Error cudaGetDeviceProperties_v2(Properties* out, int device) { return properties(out, device); }
#endif

CUDART_EXPORT Error cudaDeviceGetAttribute(int* value, unsigned attribute, int device) {
  return with_driver([&](const Driver& driver) {
    if (const Error error = check_device(driver, device); error != Error::kSuccess) return error;
    return error_of(driver.cuDeviceGetAttribute(value, attribute, device));
  });
}

CUDART_EXPORT Error cudaDeviceGetPCIBusId(char* id, int size, int device) {
  return with_driver([&](const Driver& driver) { return driver.cuDeviceGetPCIBusId(id, size, device); });
}

CUDART_EXPORT Error cudaDeviceGetByPCIBusId(int* device, const char* id) {
  return with_driver([&](const Driver& driver) { return driver.cuDeviceGetByPCIBusId(device, id); });
}

CUDART_EXPORT Error cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return with_driver([&](const Driver& driver) { return driver.cuDeviceCanAccessPeer(can, device, peer); });
}

CUDART_EXPORT Error cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return with_primary_of(peer, [&](const Driver& driver, cu::Context context) {
    int device = 0;
    const cu::Result asked = driver.cuCtxGetDevice(&device);
    if (asked != cu::Result::kSuccess) return error_of(asked);
    if (peer == device) return Error::kInvalidDevice;  // where the driver says that the context is invalid
    return error_of(driver.cuCtxEnablePeerAccess(context, flags));
  });
}

CUDART_EXPORT Error cudaDeviceDisablePeerAccess(int peer) {
  return with_primary_of(
      peer, [&](const Driver& driver, cu::Context context) { return driver.cuCtxDisablePeerAccess(context); });
}

CUDART_EXPORT Error cudaDeviceGetP2PAttribute(int* value, unsigned attribute, int source, int target) {
  return with_driver(
      [&](const Driver& driver) { return driver.cuDeviceGetP2PAttribute(value, attribute, source, target); });
}

CUDART_EXPORT Error cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return with_context([&](const Driver& driver) { return driver.cuCtxGetStreamPriorityRange(least, greatest); });
}

CUDART_EXPORT Error cudaDeviceGetLimit(std::size_t* value, unsigned limit) {
  return with_context([&](const Driver& driver) { return driver.cuCtxGetLimit(value, limit); });
}

CUDART_EXPORT Error cudaDeviceSetLimit(unsigned limit, std::size_t value) {
  return with_context([&](const Driver& driver) { return driver.cuCtxSetLimit(limit, value); });
}

CUDART_EXPORT Error cudaDeviceGetCacheConfig(unsigned* config) {
  return with_context([&](const Driver& driver) { return driver.cuCtxGetCacheConfig(config); });
}

CUDART_EXPORT Error cudaDeviceSetCacheConfig(unsigned config) {
  return with_context([&](const Driver& driver) { return driver.cuCtxSetCacheConfig(config); });
}

CUDART_EXPORT Error cudaDeviceGetSharedMemConfig(unsigned* config) {
  return with_context([&](const Driver& driver) { return driver.cuCtxGetSharedMemConfig(config); });
}

CUDART_EXPORT Error cudaDeviceSetSharedMemConfig(unsigned config) {
  return with_context([&](const Driver& driver) { return driver.cuCtxSetSharedMemConfig(config); });
}

CUDART_EXPORT Error cudaDeviceGetDefaultMemPool(rt::MemPool* pool, int device) {
  return with_driver([&](const Driver& driver) { return driver.cuDeviceGetDefaultMemPool(pool, device); });
}

CUDART_EXPORT Error cudaDeviceGetMemPool(rt::MemPool* pool, int device) {
  return with_driver([&](const Driver& driver) { return driver.cuDeviceGetMemPool(pool, device); });
}

CUDART_EXPORT Error cudaDeviceSetMemPool(int device, rt::MemPool pool) {
  return with_driver([&](const Driver& driver) { return driver.cuDeviceSetMemPool(device, pool); });
}

CUDART_EXPORT Error cudaDeviceGetGraphMemAttribute(int device, unsigned attribute, void* value) {
  return with_driver(
      [&](const Driver& driver) { return driver.cuDeviceGetGraphMemAttribute(device, attribute, value); });
}

CUDART_EXPORT Error cudaDeviceSetGraphMemAttribute(int device, unsigned attribute, void* value) {
  return with_driver(
      [&](const Driver& driver) { return driver.cuDeviceSetGraphMemAttribute(device, attribute, value); });
}

CUDART_EXPORT Error cudaDeviceGraphMemTrim(int device) {
  return with_driver([&](const Driver& driver) { return driver.cuDeviceGraphMemTrim(device); });
}

CUDART_EXPORT Error cudaDeviceFlushGPUDirectRDMAWrites(unsigned target, unsigned scope) {
  return with_context([&](const Driver& driver) { return driver.cuFlushGPUDirectRDMAWrites(target, scope); });
}

CUDART_EXPORT Error cudaDeviceSynchronize() {
  return with_context([](const Driver& driver) { return driver.cuCtxSynchronize(); });
}

CUDART_EXPORT Error cudaDeviceReset() {
  return with_driver([](const Driver& driver) {
    int device = thread_state().device;
    driver.cuCtxGetDevice(&device);
    unsigned flags = 0;
    int is_active = 0;
    driver.cuDevicePrimaryCtxGetState(device, &flags, &is_active);
    // A program that uses the driver directly may have made it. Threads that have it current are found by its handle.
    cu::Context ending = nullptr;
    Error error = is_active != 0 ? primary_context(driver, device, &ending) : Error::kSuccess;
    if (error == Error::kSuccess) error = error_of(driver.cuDevicePrimaryCtxReset_v2(device));
    if (error != Error::kSuccess) return error;
    kernels().forget_memory(device);
    forget_primary_context(device);
    return error;
  });
}

CUDART_EXPORT Error cudaGetDeviceFlags(unsigned* flags) {
  return with_context([&](const Driver& driver) { return driver.cuCtxGetFlags(flags); });
}

CUDART_EXPORT Error cudaSetDeviceFlags(unsigned flags) {
  return with_driver(
      [&](const Driver& driver) { return driver.cuDevicePrimaryCtxSetFlags_v2(thread_state().device, flags); });
}

CUDART_EXPORT Error cudaCtxResetPersistingL2Cache() {
  return with_context([](const Driver& driver) { return driver.cuCtxResetPersistingL2Cache(); });
}

CUDART_EXPORT Error cudaProfilerStart() {
  return with_context([](const Driver& driver) { return driver.cuProfilerStart(); });
}

CUDART_EXPORT Error cudaProfilerStop() {
  return with_context([](const Driver& driver) { return driver.cuProfilerStop(); });
}
