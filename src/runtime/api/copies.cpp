// Copies and fills, by direction, in rows and volumes, and to variables of the device.
#include "runtime/exports.hpp"
#include "runtime/kernels.hpp"
#include "runtime/state.hpp"

using namespace cudart;
using rt::MemcpyKind;

namespace {

enum class Wait : bool { kNo, kYes };

// Where a call runs: on the null stream of the driver's own synchronous functions, or on a stream.
struct Place {
  rt::Stream stream = nullptr;
  Wait wait = Wait::kNo;
};
Place asynchronous(rt::Stream stream) { return {.stream = stream_for(stream), .wait = Wait::kNo}; }
Place synchronous() { return {.stream = stream_for(nullptr), .wait = Wait::kYes}; }

// The driver has synchronous functions for the legacy stream. For a thread's own stream: the asynchronous one, and a wait.
cu::Result finish(const Driver& driver, cu::Result queued, const Place& place) {
  if (queued != cu::Result::kSuccess || place.wait == Wait::kNo) return queued;
  return driver.cuStreamSynchronize(place.stream);
}

bool is_legacy(const Place& place) { return place.wait == Wait::kYes && place.stream == nullptr; }

cu::Result copy(const Driver& driver, void* dst, const void* src, std::size_t size, MemcpyKind kind,
                const Place& place) {
  if (is_legacy(place)) {
    switch (kind) {
      case MemcpyKind::kHostToDevice:
        return driver.cuMemcpyHtoD_v2(device_ptr(dst), src, size);
      case MemcpyKind::kDeviceToHost:
        return driver.cuMemcpyDtoH_v2(dst, device_ptr(src), size);
      case MemcpyKind::kDeviceToDevice:
        return driver.cuMemcpyDtoD_v2(device_ptr(dst), device_ptr(src), size);
      default:
        return driver.cuMemcpy(device_ptr(dst), device_ptr(src), size);
    }
  }
  switch (kind) {
    case MemcpyKind::kHostToDevice:
      return finish(driver, driver.cuMemcpyHtoDAsync_v2(device_ptr(dst), src, size, place.stream), place);
    case MemcpyKind::kDeviceToHost:
      return finish(driver, driver.cuMemcpyDtoHAsync_v2(dst, device_ptr(src), size, place.stream), place);
    case MemcpyKind::kDeviceToDevice:
      return finish(driver, driver.cuMemcpyDtoDAsync_v2(device_ptr(dst), device_ptr(src), size, place.stream), place);
    default:
      return finish(driver, driver.cuMemcpyAsync(device_ptr(dst), device_ptr(src), size, place.stream), place);
  }
}

Error check_kind(MemcpyKind kind) {
  return kind <= MemcpyKind::kDefault ? Error::kSuccess : Error::kInvalidMemcpyDirection;
}

Error copy_bytes(void* dst, const void* src, std::size_t size, MemcpyKind kind, const Place& place) {
  return with_context([&](const Driver& driver) {
    const Error error = check_kind(kind);
    if (error != Error::kSuccess || size == 0) return error;
    return error_of(copy(driver, dst, src, size, kind, place));
  });
}

cu::MemoryType source_type(MemcpyKind kind) {
  if (kind == MemcpyKind::kDefault) return cu::MemoryType::kUnified;
  const bool is_device = kind == MemcpyKind::kDeviceToHost || kind == MemcpyKind::kDeviceToDevice;
  return is_device ? cu::MemoryType::kDevice : cu::MemoryType::kHost;
}

cu::MemoryType target_type(MemcpyKind kind) {
  if (kind == MemcpyKind::kDefault) return cu::MemoryType::kUnified;
  const bool is_device = kind == MemcpyKind::kHostToDevice || kind == MemcpyKind::kDeviceToDevice;
  return is_device ? cu::MemoryType::kDevice : cu::MemoryType::kHost;
}

Error copy_rows(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch, std::size_t width,
                std::size_t height, MemcpyKind kind, const Place& place) {
  return with_context([&](const Driver& driver) {
    if (const Error error = check_kind(kind); error != Error::kSuccess) return error;
    if (width > dst_pitch || width > src_pitch) return Error::kInvalidPitchValue;
    if (width == 0 || height == 0) return Error::kSuccess;
    cu::Memcpy2D rows{};
    rows.src_type = source_type(kind);
    rows.src_host = src;
    rows.src_device = device_ptr(src);
    rows.src_pitch = src_pitch;
    rows.dst_type = target_type(kind);
    rows.dst_host = dst;
    rows.dst_device = device_ptr(dst);
    rows.dst_pitch = dst_pitch;
    rows.width = width;
    rows.height = height;
    if (is_legacy(place)) return error_of(driver.cuMemcpy2DUnaligned_v2(&rows));
    return error_of(finish(driver, driver.cuMemcpy2DAsync_v2(&rows, place.stream), place));
  });
}

Error copy_volume(const rt::Memcpy3D* given, const Place& place) {
  return with_context([&](const Driver& driver) {
    if (given == nullptr) return Error::kInvalidValue;
    if (given->src_array != nullptr || given->dst_array != nullptr) return Error::kNotSupported;
    if (const Error error = check_kind(given->kind); error != Error::kSuccess) return error;
    const rt::Extent& extent = given->extent;
    if (extent.width == 0 || extent.height == 0 || extent.depth == 0) return Error::kSuccess;
    cu::Memcpy3D volume{};
    volume.src_x = given->src_position.x;
    volume.src_y = given->src_position.y;
    volume.src_z = given->src_position.z;
    volume.src_type = source_type(given->kind);
    volume.src_host = given->src.ptr;
    volume.src_device = device_ptr(given->src.ptr);
    volume.src_pitch = given->src.pitch;
    volume.src_height = given->src.height;
    volume.dst_x = given->dst_position.x;
    volume.dst_y = given->dst_position.y;
    volume.dst_z = given->dst_position.z;
    volume.dst_type = target_type(given->kind);
    volume.dst_host = given->dst.ptr;
    volume.dst_device = device_ptr(given->dst.ptr);
    volume.dst_pitch = given->dst.pitch;
    volume.dst_height = given->dst.height;
    volume.width = extent.width;
    volume.height = extent.height;
    volume.depth = extent.depth;
    if (is_legacy(place)) return error_of(driver.cuMemcpy3D_v2(&volume));
    return error_of(finish(driver, driver.cuMemcpy3DAsync_v2(&volume, place.stream), place));
  });
}

Error fill(void* ptr, int value, std::size_t size, const Place& place) {
  return with_context([&](const Driver& driver) {
    const auto byte = static_cast<unsigned char>(value);
    if (size == 0) return cu::Result::kSuccess;
    if (is_legacy(place)) return driver.cuMemsetD8_v2(device_ptr(ptr), byte, size);
    return finish(driver, driver.cuMemsetD8Async(device_ptr(ptr), byte, size, place.stream), place);
  });
}

Error fill_rows(void* ptr, std::size_t pitch, int value, std::size_t width, std::size_t height, const Place& place) {
  return with_context([&](const Driver& driver) {
    const auto byte = static_cast<unsigned char>(value);
    if (width == 0 || height == 0) return cu::Result::kSuccess;
    if (is_legacy(place)) return driver.cuMemsetD2D8_v2(device_ptr(ptr), pitch, byte, width, height);
    return finish(driver, driver.cuMemsetD2D8Async(device_ptr(ptr), pitch, byte, width, height, place.stream), place);
  });
}

// Runs `body` with the bytes of a device variable that a copy is about.
template <typename Body>
Error with_variable(const void* symbol, std::size_t offset, std::size_t size, const Body& body) {
  return with_context([&](const Driver& driver) {
    cu::DevicePtr address = 0;
    std::size_t available = 0;
    const Error error = kernels().find_variable(driver, symbol, &address, &available);
    if (error != Error::kSuccess) return error;
    if (offset > available || size > available - offset) return Error::kInvalidValue;
    return error_of(body(driver, host_ptr(address + offset)));
  });
}

Error copy_to_variable(const void* symbol, const void* src, std::size_t size, std::size_t offset, MemcpyKind kind,
                       const Place& place) {
  return with_variable(symbol, offset, size, [&](const Driver& driver, void* variable) {
    const bool is_right =
        kind == MemcpyKind::kHostToDevice || kind == MemcpyKind::kDeviceToDevice || kind == MemcpyKind::kDefault;
    return is_right ? error_of(copy(driver, variable, src, size, kind, place)) : Error::kInvalidMemcpyDirection;
  });
}

Error copy_from_variable(void* dst, const void* symbol, std::size_t size, std::size_t offset, MemcpyKind kind,
                         const Place& place) {
  return with_variable(symbol, offset, size, [&](const Driver& driver, const void* variable) {
    const bool is_right =
        kind == MemcpyKind::kDeviceToHost || kind == MemcpyKind::kDeviceToDevice || kind == MemcpyKind::kDefault;
    return is_right ? error_of(copy(driver, dst, variable, size, kind, place)) : Error::kInvalidMemcpyDirection;
  });
}

// Runs `body` with the primary contexts of two devices.
template <typename Body>
Error between_devices(int dst_device, int src_device, const Body& body) {
  return with_context([&](const Driver& driver) {
    cu::Context dst = nullptr, src = nullptr;
    Error error = primary_context(driver, dst_device, &dst);
    if (error == Error::kSuccess) error = primary_context(driver, src_device, &src);
    return error == Error::kSuccess ? error_of(body(driver, dst, src)) : error;
  });
}

}  // namespace

CUDART_EXPORT Error cudaMemcpy(void* dst, const void* src, std::size_t size, MemcpyKind kind) {
  return copy_bytes(dst, src, size, kind, synchronous());
}

CUDART_EXPORT Error cudaMemcpyAsync(void* dst, const void* src, std::size_t size, MemcpyKind kind, rt::Stream stream) {
  return copy_bytes(dst, src, size, kind, asynchronous(stream));
}

CUDART_EXPORT Error cudaMemcpy2D(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch,
                                 std::size_t width, std::size_t height, MemcpyKind kind) {
  return copy_rows(dst, dst_pitch, src, src_pitch, width, height, kind, synchronous());
}

CUDART_EXPORT Error cudaMemcpy2DAsync(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch,
                                      std::size_t width, std::size_t height, MemcpyKind kind, rt::Stream stream) {
  return copy_rows(dst, dst_pitch, src, src_pitch, width, height, kind, asynchronous(stream));
}

CUDART_EXPORT Error cudaMemcpy3D(const rt::Memcpy3D* copy) { return copy_volume(copy, synchronous()); }

CUDART_EXPORT Error cudaMemcpy3DAsync(const rt::Memcpy3D* copy, rt::Stream stream) {
  return copy_volume(copy, asynchronous(stream));
}

CUDART_EXPORT Error cudaMemcpyPeer(void* dst, int dst_device, const void* src, int src_device, std::size_t size) {
  return between_devices(dst_device, src_device, [&](const Driver& driver, cu::Context to, cu::Context from) {
    return driver.cuMemcpyPeer(device_ptr(dst), to, device_ptr(src), from, size);
  });
}

CUDART_EXPORT Error cudaMemcpyPeerAsync(void* dst, int dst_device, const void* src, int src_device, std::size_t size,
                                        rt::Stream stream) {
  return between_devices(dst_device, src_device, [&](const Driver& driver, cu::Context to, cu::Context from) {
    return driver.cuMemcpyPeerAsync(device_ptr(dst), to, device_ptr(src), from, size, stream_for(stream));
  });
}

CUDART_EXPORT Error cudaMemcpyToSymbol(const void* symbol, const void* src, std::size_t size, std::size_t offset,
                                       MemcpyKind kind) {
  return copy_to_variable(symbol, src, size, offset, kind, synchronous());
}

CUDART_EXPORT Error cudaMemcpyToSymbolAsync(const void* symbol, const void* src, std::size_t size, std::size_t offset,
                                            MemcpyKind kind, rt::Stream stream) {
  return copy_to_variable(symbol, src, size, offset, kind, asynchronous(stream));
}

CUDART_EXPORT Error cudaMemcpyFromSymbol(void* dst, const void* symbol, std::size_t size, std::size_t offset,
                                         MemcpyKind kind) {
  return copy_from_variable(dst, symbol, size, offset, kind, synchronous());
}

CUDART_EXPORT Error cudaMemcpyFromSymbolAsync(void* dst, const void* symbol, std::size_t size, std::size_t offset,
                                              MemcpyKind kind, rt::Stream stream) {
  return copy_from_variable(dst, symbol, size, offset, kind, asynchronous(stream));
}

CUDART_EXPORT Error cudaMemset(void* ptr, int value, std::size_t size) { return fill(ptr, value, size, synchronous()); }

CUDART_EXPORT Error cudaMemsetAsync(void* ptr, int value, std::size_t size, rt::Stream stream) {
  return fill(ptr, value, size, asynchronous(stream));
}

CUDART_EXPORT Error cudaMemset2D(void* ptr, std::size_t pitch, int value, std::size_t width, std::size_t height) {
  return fill_rows(ptr, pitch, value, width, height, synchronous());
}

CUDART_EXPORT Error cudaMemset2DAsync(void* ptr, std::size_t pitch, int value, std::size_t width, std::size_t height,
                                      rt::Stream stream) {
  return fill_rows(ptr, pitch, value, width, height, asynchronous(stream));
}

CUDART_EXPORT Error cudaGetSymbolAddress(void** ptr, const void* symbol) {
  return with_variable(symbol, 0, 0, [&](const Driver&, void* variable) {
    if (ptr == nullptr) return Error::kInvalidValue;
    *ptr = variable;
    return Error::kSuccess;
  });
}

CUDART_EXPORT Error cudaGetSymbolSize(std::size_t* size, const void* symbol) {
  return with_context([&](const Driver& driver) {
    cu::DevicePtr ignored = 0;
    return size != nullptr ? kernels().find_variable(driver, symbol, &ignored, size) : Error::kInvalidValue;
  });
}
