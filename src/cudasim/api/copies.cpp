// Copies and fills, in stream order.
//
// When a call returns, only what NVIDIA documents ("API synchronization behavior") is done. A copy from pageable memory
// of the program has been staged, but need not have arrived; a copy to it has arrived. The synchronous forms wait for
// copies to the host and from pinned memory, but not for copies and fills that stay on the device.
#include <cstring>

#include "cudasim/api/capture.hpp"
#include "cudasim/api/contexts.hpp"
#include "cudasim/machine/sparse.hpp"

namespace cudasim {
namespace {

enum class Timing { kSynchronous, kAsynchronous };

// One end of a copy: memory that the driver manages, or pageable memory of the program.
struct End {
  std::uint64_t address;
  bool managed;
};

struct Copy {
  End dst, src;
  std::size_t size;
  std::shared_ptr<std::vector<char>> staged = {};  // the contents of the pageable source at the time of the call
  std::shared_ptr<const ContextState> dst_context = {};
  std::shared_ptr<const ContextState> src_context = {};
};

bool on_device(Machine& m, std::uint64_t address) {
  const Mapping* mapping = m.space->mapping_at(address);
  return mapping != nullptr && (mapping->physical->device != nullptr ||
                                mapping->physical->prop.location.type == cu::MemLocationType::kDevice);
}

bool pieces_of(const End& end, const Effect& effect, char* staged, std::vector<Piece>& pieces) {
  if (end.managed) return locate(machine(), effect, &pieces);
  char* data = staged != nullptr ? staged : reinterpret_cast<char*>(end.address);
  pieces.push_back({data, effect.size});
  return true;
}

Effect write_effect(const Copy& copy) {
  return {.address = copy.dst.address, .size = copy.size, .write = true, .copy = true, .context = copy.dst_context};
}

Effect read_effect(const Copy& copy) {
  return {.address = copy.src.address, .size = copy.size, .write = false, .copy = true, .context = copy.src_context};
}

// Runs on a worker, or on the calling thread after it released the machine's mutex.
Result run_copy(const Copy& copy) {
  std::vector<Piece> to, from;
  {
    const std::lock_guard lock(machine().mutex);
    char* staged = copy.staged ? copy.staged->data() : nullptr;
    if (!machine().initialised) return kSuccess;
    if (!pieces_of(copy.dst, write_effect(copy), nullptr, to)) return kIllegalAddress;
    if (!pieces_of(copy.src, read_effect(copy), staged, from)) return kIllegalAddress;
  }
  for (std::size_t i = 0, j = 0; i < to.size() && j < from.size();) {
    const std::uint64_t size = std::min(to[i].size, from[j].size);
    copy_sparsely(to[i], from[j], size);
    to[i].data += size;
    from[j].data += size;
    if ((to[i].size -= size) == 0) ++i;
    if ((from[j].size -= size) == 0) ++j;
  }
  return kSuccess;
}

Result copy_bytes(Call& call, Copy copy, cu::Stream handle, Timing timing) {
  Machine& m = call.machine;
  const bool synchronous = timing == Timing::kSynchronous;
  const StreamRef stream = stream_of(call, handle);
  if (synchronous) check_may_wait(call, stream);
  if (copy.dst_context == nullptr) copy.dst_context = stream->context;
  if (copy.src_context == nullptr) copy.src_context = stream->context;
  if (copy.size == 0) return kSuccess;
  require(copy.dst.address != 0 && copy.src.address != 0, kInvalidValue);
  Work work{.name = call.name, .bytes = copy.size};
  if (copy.dst.managed) work.effects.push_back(write_effect(copy));
  if (copy.src.managed) work.effects.push_back(read_effect(copy));
  const bool captured = stream->capture != nullptr;
  if (!copy.src.managed && !captured) {
    for (const Effect& effect : work.effects) require(locate(m, effect, nullptr), kIllegalAddress);
    const char* data = reinterpret_cast<const char*>(copy.src.address);
    copy.staged = std::make_shared<std::vector<char>>(data, data + copy.size);
    if (synchronous) wait_for_stream(call, stream);  // only for earlier work
  }
  work.run = [copy] { return run_copy(copy); };
  submit(call, stream, std::move(work));
  const bool to_pageable = !copy.dst.managed;
  const bool stays = on_device(m, copy.dst.address) && (!copy.src.managed || on_device(m, copy.src.address));
  if (!captured && (to_pageable || (synchronous && !stays))) wait_for_stream(call, stream);
  return kSuccess;
}

Copy unified(Call& call, std::uint64_t dst, std::uint64_t src, std::size_t size) {
  Machine& m = call.machine;
  return {.dst = {dst, is_managed_address(m, dst)}, .src = {src, is_managed_address(m, src)}, .size = size};
}

// These say which ends are device memory, and the ends must be.
Copy host_to_device(Call& call, std::uint64_t dst, std::uint64_t src, std::size_t size) {
  const Copy copy = unified(call, dst, src, size);
  require(size == 0 || copy.dst.managed, kIllegalAddress);
  return copy;
}

Copy device_to_host(Call& call, std::uint64_t dst, std::uint64_t src, std::size_t size) {
  const Copy copy = unified(call, dst, src, size);
  require(size == 0 || copy.src.managed, kIllegalAddress);
  return copy;
}

Copy device_to_device(Call& call, std::uint64_t dst, std::uint64_t src, std::size_t size) {
  const Copy copy = unified(call, dst, src, size);
  require(size == 0 || (copy.dst.managed && copy.src.managed), kIllegalAddress);
  return copy;
}

Result copy_now(std::string_view name, const std::function<Copy(Call&)>& make) {
  return enter(name, Need::kContext,
               [&](Call& call) { return copy_bytes(call, make(call), nullptr, Timing::kSynchronous); });
}

Result copy_async(std::string_view name, cu::Stream stream, const std::function<Copy(Call&)>& make) {
  return enter(name, Need::kContext,
               [&](Call& call) { return copy_bytes(call, make(call), stream, Timing::kAsynchronous); });
}

Copy peer(Call& call, cu::DevicePtr dst, cu::Context dst_context, cu::DevicePtr src, cu::Context src_context,
          std::size_t size) {
  require(dst_context != nullptr && src_context != nullptr, kInvalidContext);
  const ContextRef to = context_of(call, dst_context);
  const ContextRef from = context_of(call, src_context);
  Copy copy = device_to_device(call, dst, src, size);
  copy.dst_context = to;
  copy.src_context = from;
  return copy;
}

template <typename Value>
Result run_fill(const Effect& effect, Value value) {
  std::vector<Piece> pieces;
  {
    const std::lock_guard lock(machine().mutex);
    if (!machine().initialised) return kSuccess;
    if (!locate(machine(), effect, &pieces)) return kIllegalAddress;
  }
  for (const Piece& piece : pieces) {
    if (sizeof(Value) == 1 || value == 0) {
      fill_sparsely(piece, static_cast<unsigned char>(value));
    } else {
      for (std::uint64_t at = 0; at < piece.size; at += sizeof value) {
        std::memcpy(piece.data + at, &value, sizeof value);
      }
    }
  }
  return kSuccess;
}

template <typename Value>
Result fill(std::string_view name, cu::DevicePtr dst, Value value, std::size_t count, cu::Stream handle,
            Timing timing) {
  return enter(name, Need::kContext, [&](Call& call) {
    const bool synchronous = timing == Timing::kSynchronous;
    const StreamRef stream = stream_of(call, handle);
    if (synchronous) check_may_wait(call, stream);
    require(dst % sizeof(Value) == 0 && count <= SIZE_MAX / sizeof(Value), kInvalidValue);
    if (count == 0) return kSuccess;
    const Effect effect{
        .address = dst, .size = count * sizeof(Value), .write = true, .copy = false, .context = stream->context};
    submit(call, stream,
           {.name = call.name,
            .run = [effect, value] { return run_fill(effect, value); },
            .effects = {effect},
            .bytes = effect.size});
    if (synchronous && !on_device(call.machine, dst)) wait_for_stream(call, stream);
    return kSuccess;
  });
}

}  // namespace
}  // namespace cudasim

using namespace cudasim;
using cu::Context;
using cu::DevicePtr;
using cu::Stream;

CUDASIM_EXPORT Result cuMemcpy(DevicePtr dst, DevicePtr src, std::size_t size) {
  return copy_now("cuMemcpy", [&](Call& call) { return unified(call, dst, src, size); });
}

CUDASIM_EXPORT Result cuMemcpyAsync(DevicePtr dst, DevicePtr src, std::size_t size, Stream stream) {
  return copy_async("cuMemcpyAsync", stream, [&](Call& call) { return unified(call, dst, src, size); });
}

CUDASIM_EXPORT Result cuMemcpyHtoD_v2(DevicePtr dst, const void* src, std::size_t size) {
  return copy_now("cuMemcpyHtoD", [&](Call& call) { return host_to_device(call, dst, address_of(src), size); });
}

CUDASIM_EXPORT Result cuMemcpyDtoH_v2(void* dst, DevicePtr src, std::size_t size) {
  return copy_now("cuMemcpyDtoH", [&](Call& call) { return device_to_host(call, address_of(dst), src, size); });
}

CUDASIM_EXPORT Result cuMemcpyDtoD_v2(DevicePtr dst, DevicePtr src, std::size_t size) {
  return copy_now("cuMemcpyDtoD", [&](Call& call) { return device_to_device(call, dst, src, size); });
}

CUDASIM_EXPORT Result cuMemcpyHtoDAsync_v2(DevicePtr dst, const void* src, std::size_t size, Stream stream) {
  return copy_async("cuMemcpyHtoDAsync", stream,
                    [&](Call& call) { return host_to_device(call, dst, address_of(src), size); });
}

CUDASIM_EXPORT Result cuMemcpyDtoHAsync_v2(void* dst, DevicePtr src, std::size_t size, Stream stream) {
  return copy_async("cuMemcpyDtoHAsync", stream,
                    [&](Call& call) { return device_to_host(call, address_of(dst), src, size); });
}

CUDASIM_EXPORT Result cuMemcpyDtoDAsync_v2(DevicePtr dst, DevicePtr src, std::size_t size, Stream stream) {
  return copy_async("cuMemcpyDtoDAsync", stream, [&](Call& call) { return device_to_device(call, dst, src, size); });
}

CUDASIM_EXPORT Result cuMemcpyPeer(DevicePtr dst, Context dst_context, DevicePtr src, Context src_context,
                                   std::size_t size) {
  return copy_now("cuMemcpyPeer", [&](Call& call) { return peer(call, dst, dst_context, src, src_context, size); });
}

CUDASIM_EXPORT Result cuMemcpyPeerAsync(DevicePtr dst, Context dst_context, DevicePtr src, Context src_context,
                                        std::size_t size, Stream stream) {
  return copy_async("cuMemcpyPeerAsync", stream,
                    [&](Call& call) { return peer(call, dst, dst_context, src, src_context, size); });
}

CUDASIM_EXPORT Result cuMemsetD8_v2(DevicePtr dst, unsigned char value, std::size_t count) {
  return fill("cuMemsetD8", dst, value, count, nullptr, Timing::kSynchronous);
}

CUDASIM_EXPORT Result cuMemsetD16_v2(DevicePtr dst, unsigned short value, std::size_t count) {
  return fill("cuMemsetD16", dst, value, count, nullptr, Timing::kSynchronous);
}

CUDASIM_EXPORT Result cuMemsetD32_v2(DevicePtr dst, unsigned value, std::size_t count) {
  return fill("cuMemsetD32", dst, value, count, nullptr, Timing::kSynchronous);
}

CUDASIM_EXPORT Result cuMemsetD8Async(DevicePtr dst, unsigned char value, std::size_t count, Stream stream) {
  return fill("cuMemsetD8Async", dst, value, count, stream, Timing::kAsynchronous);
}

CUDASIM_EXPORT Result cuMemsetD16Async(DevicePtr dst, unsigned short value, std::size_t count, Stream stream) {
  return fill("cuMemsetD16Async", dst, value, count, stream, Timing::kAsynchronous);
}

CUDASIM_EXPORT Result cuMemsetD32Async(DevicePtr dst, unsigned value, std::size_t count, Stream stream) {
  return fill("cuMemsetD32Async", dst, value, count, stream, Timing::kAsynchronous);
}
