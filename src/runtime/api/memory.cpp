// Memory of the device and the host, pools, and what is known about a pointer.
#include <algorithm>
#include <cstring>

#include "runtime/exports.hpp"
#include "runtime/state.hpp"

using namespace cudart;

namespace {

constexpr std::size_t kPitch = 512;  // rows of cudaMallocPitch begin at its multiples
constexpr int kNoDevice = -2;        // of memory that CUDA does not know

// The runtime hands out nothing for nothing, where the driver refuses.
Error allocate(void** ptr, std::size_t size) {
  return with_context([&](const Driver& driver) {
    if (ptr == nullptr) return Error::kInvalidValue;
    *ptr = nullptr;
    cu::DevicePtr address = 0;
    if (size != 0) {
      const cu::Result result = driver.cuMemAlloc_v2(&address, size);
      if (result != cu::Result::kSuccess) return error_of(result);
    }
    *ptr = host_ptr(address);
    return Error::kSuccess;
  });
}

Error allocate_host(void** ptr, std::size_t size, unsigned flags) {
  return with_context([&](const Driver& driver) {
    if (ptr == nullptr) return Error::kInvalidValue;
    *ptr = nullptr;
    return size == 0 ? Error::kSuccess : error_of(driver.cuMemHostAlloc(ptr, size, flags));
  });
}

Error advise(const void* ptr, std::size_t count, unsigned advice, rt::MemLocation location) {
  return with_context(
      [&](const Driver& driver) { return driver.cuMemAdvise_v2(device_ptr(ptr), count, advice, location); });
}

Error prefetch(const void* ptr, std::size_t count, rt::MemLocation location, unsigned flags, rt::Stream stream) {
  return with_context([&](const Driver& driver) {
    return driver.cuMemPrefetchAsync_v2(device_ptr(ptr), count, location, flags, stream_for(stream));
  });
}

#if CUDART_MAJOR < 13
// CUDA 12's older functions take a device, or -1 for the host.
constexpr int kHost = -1;
rt::MemLocation location_of(int device) {
  return device == kHost ? rt::MemLocation{.type = cu::MemLocationType::kHost, .id = 0}
                         : rt::MemLocation{.type = cu::MemLocationType::kDevice, .id = device};
}
#endif

Error describe(const Driver& driver, const void* ptr, rt::PointerAttributes& out) {
  unsigned type = 0, is_managed = 0;
  int device = kNoDevice;
  cu::DevicePtr on_device = 0;
  void* on_host = nullptr;
  cu::PointerAttribute wanted[] = {cu::PointerAttribute::kMemoryType, cu::PointerAttribute::kIsManaged,
                                   cu::PointerAttribute::kDeviceOrdinal, cu::PointerAttribute::kDevicePointer,
                                   cu::PointerAttribute::kHostPointer};
  void* values[] = {&type, &is_managed, &device, &on_device, static_cast<void*>(&on_host)};
  const cu::Result result = driver.cuPointerGetAttributes(std::size(wanted), wanted, values, device_ptr(ptr));
  if (result != cu::Result::kSuccess) return error_of(result);
  std::memset(static_cast<void*>(&out), 0, sizeof out);
  const bool is_known = type != 0;
  out.type = is_managed != 0 ? rt::MemoryType::kManaged : static_cast<rt::MemoryType>(type);
  out.device = is_known ? device : kNoDevice;
  out.device_pointer = is_known ? host_ptr(on_device) : nullptr;
  out.host_pointer = is_known ? on_host : const_cast<void*>(ptr);
  return Error::kSuccess;
}

}  // namespace

CUDART_EXPORT Error cudaMalloc(void** ptr, std::size_t size) { return allocate(ptr, size); }

CUDART_EXPORT Error cudaFree(void* ptr) {
  return with_context([&](const Driver& driver) {
    return ptr == nullptr ? cu::Result::kSuccess : driver.cuMemFree_v2(device_ptr(ptr));
  });
}

CUDART_EXPORT Error cudaMallocManaged(void** ptr, std::size_t size, unsigned flags) {
  return with_context([&](const Driver& driver) { return driver.cuMemAllocManaged(ptr, size, flags); });
}

CUDART_EXPORT Error cudaMallocPitch(void** ptr, std::size_t* pitch, std::size_t width, std::size_t height) {
  if (pitch == nullptr || width > ~std::size_t{0} - kPitch) return remember(Error::kInvalidValue);
  *pitch = (width + kPitch - 1) / kPitch * kPitch;
  std::size_t size = 0;
  if (__builtin_mul_overflow(*pitch, height, &size)) return remember(Error::kMemoryAllocation);
  return allocate(ptr, size);
}

CUDART_EXPORT Error cudaMalloc3D(rt::PitchedPtr* ptr, rt::Extent extent) {
  if (ptr == nullptr) return remember(Error::kInvalidValue);
  std::size_t rows = 0;
  if (__builtin_mul_overflow(extent.height, extent.depth, &rows)) return remember(Error::kMemoryAllocation);
  ptr->width = extent.width;
  ptr->height = extent.height;
  return cudaMallocPitch(&ptr->ptr, &ptr->pitch, extent.width, rows);
}

// Returns a struct, so it cannot be one of those that only return an error.
CUDART_EXPORT rt::ChannelFormat cudaCreateChannelDesc(int x, int y, int z, int w, unsigned kind) {
  return {.x = x, .y = y, .z = z, .w = w, .kind = kind};
}

CUDART_EXPORT Error cudaMallocHost(void** ptr, std::size_t size) { return allocate_host(ptr, size, 0); }

CUDART_EXPORT Error cudaHostAlloc(void** ptr, std::size_t size, unsigned flags) {
  return allocate_host(ptr, size, flags);
}

CUDART_EXPORT Error cudaFreeHost(void* ptr) {
  return with_context(
      [&](const Driver& driver) { return ptr == nullptr ? cu::Result::kSuccess : driver.cuMemFreeHost(ptr); });
}

CUDART_EXPORT Error cudaHostRegister(void* ptr, std::size_t size, unsigned flags) {
  return with_context([&](const Driver& driver) { return driver.cuMemHostRegister_v2(ptr, size, flags); });
}

CUDART_EXPORT Error cudaHostUnregister(void* ptr) {
  return with_context([&](const Driver& driver) { return driver.cuMemHostUnregister(ptr); });
}

CUDART_EXPORT Error cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
  return with_context([&](const Driver& driver) { return driver.cuMemHostGetDevicePointer_v2(device, host, flags); });
}

CUDART_EXPORT Error cudaHostGetFlags(unsigned* flags, void* host) {
  return with_context([&](const Driver& driver) { return driver.cuMemHostGetFlags(flags, host); });
}

CUDART_EXPORT Error cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return with_context([&](const Driver& driver) { return driver.cuMemGetInfo_v2(free, total); });
}

CUDART_EXPORT Error cudaPointerGetAttributes(rt::PointerAttributes* attributes, const void* ptr) {
  return with_context([&](const Driver& driver) {
    return attributes != nullptr ? describe(driver, ptr, *attributes) : Error::kInvalidValue;
  });
}

CUDART_EXPORT Error cudaMemRangeGetAttribute(void* data, std::size_t data_size, unsigned attribute, const void* ptr,
                                             std::size_t count) {
  return with_context([&](const Driver& driver) {
    return driver.cuMemRangeGetAttribute(data, data_size, attribute, device_ptr(ptr), count);
  });
}

#if CUDART_MAJOR >= 13
CUDART_EXPORT Error cudaMemAdvise(const void* ptr, std::size_t count, unsigned advice, rt::MemLocation location) {
  return advise(ptr, count, advice, location);
}
CUDART_EXPORT Error cudaMemPrefetchAsync(const void* ptr, std::size_t count, rt::MemLocation location, unsigned flags,
                                         rt::Stream stream) {
  return prefetch(ptr, count, location, flags, stream);
}
#else
CUDART_EXPORT Error cudaMemAdvise(const void* ptr, std::size_t count, unsigned advice, int device) {
  return advise(ptr, count, advice, location_of(device));
}
CUDART_EXPORT Error cudaMemAdvise_v2(const void* ptr, std::size_t count, unsigned advice, rt::MemLocation location) {
  return advise(ptr, count, advice, location);
}
CUDART_EXPORT Error cudaMemPrefetchAsync(const void* ptr, std::size_t count, int device, rt::Stream stream) {
  return prefetch(ptr, count, location_of(device), 0, stream);
}
CUDART_EXPORT Error cudaMemPrefetchAsync_v2(const void* ptr, std::size_t count, rt::MemLocation location,
                                            unsigned flags, rt::Stream stream) {
  return prefetch(ptr, count, location, flags, stream);
}
#endif

CUDART_EXPORT Error cudaIpcGetMemHandle(rt::IpcMemHandle* handle, void* ptr) {
  return with_context([&](const Driver& driver) { return driver.cuIpcGetMemHandle(handle, device_ptr(ptr)); });
}

CUDART_EXPORT Error cudaIpcOpenMemHandle(void** ptr, rt::IpcMemHandle handle, unsigned flags) {
  return with_context([&](const Driver& driver) { return driver.cuIpcOpenMemHandle_v2(ptr, handle, flags); });
}

CUDART_EXPORT Error cudaIpcCloseMemHandle(void* ptr) {
  return with_context([&](const Driver& driver) { return driver.cuIpcCloseMemHandle(device_ptr(ptr)); });
}

CUDART_EXPORT Error cudaIpcGetEventHandle(rt::IpcEventHandle* handle, rt::Event event) {
  return with_context([&](const Driver& driver) { return driver.cuIpcGetEventHandle(handle, event); });
}

CUDART_EXPORT Error cudaIpcOpenEventHandle(rt::Event* event, rt::IpcEventHandle handle) {
  return with_context([&](const Driver& driver) { return driver.cuIpcOpenEventHandle(event, handle); });
}
