// Copies and fills, in stream order.
//
// When a call returns, only what NVIDIA documents ("API synchronization behavior") is done. A copy from pageable memory
// of the program has been staged, but need not have arrived; a copy to it has arrived. The synchronous forms wait for
// copies to the host and from pinned memory, but not for copies and fills that stay on the device.
#include "cudasim/api/copies.hpp"

#include <algorithm>
#include <cstring>

#include "cudasim/api/capture.hpp"
#include "cudasim/api/contexts.hpp"
#include "cudasim/api/devices.hpp"
#include "cudasim/api/graphs.hpp"
#include "cudasim/api/tracking.hpp"
#include "cudasim/machine/sparse.hpp"

namespace cudasim {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 47;  // more than there are addresses

bool on_device(Machine& m, std::uint64_t address) {
  const Mapping* mapping = m.space->mapping_at(address);
  return mapping != nullptr && (mapping->physical->device != nullptr ||
                                mapping->physical->prop.location.type == cu::MemLocationType::kDevice);
}

// Whether a synchronous call on it may return before the device is done: device memory, unless asked otherwise.
bool may_return_early(Machine& m, std::uint64_t address) {
  const Range* range = m.space->find(address);
  return on_device(m, address) && (range == nullptr || !range->sync_memops);
}

Effect row_effect(const Copy& copy, const Side& side, bool write, std::uint64_t offset) {
  return {.address = side.address + offset,
          .size = copy.width,
          .write = write,
          .copy = true,
          .context = write ? copy.dst_context : copy.src_context};
}

bool pieces_of(const Copy& copy, const Side& side, bool write, std::vector<Piece>& pieces) {
  char* staged = !write && copy.staged ? copy.staged->data() : nullptr;
  bool found = true;
  each_row(copy, side, [&](std::uint64_t offset) {
    const Effect row = row_effect(copy, side, write, offset);
    if (side.managed) {
      found = found && locate(machine(), row, &pieces);
    } else {
      pieces.push_back({staged != nullptr ? staged + offset : reinterpret_cast<char*>(row.address), copy.width});
    }
  });
  return found;
}

void add_effects(Work& work, const Copy& copy, const Side& side, bool write) {
  if (!side.managed) return;
  each_row(copy, side, [&](std::uint64_t offset) { work.effects.push_back(row_effect(copy, side, write, offset)); });
}

// Checked before rows are listed: a height that was computed wrongly can be more rows than the host has memory for.
void check_last_row(Machine& m, const Copy& copy, const Side& side, bool write, const ContextRef& context) {
  if (!side.managed) return;
  Effect last = row_effect(copy, side, write, (copy.depth - 1) * side.slice + (copy.height - 1) * side.pitch);
  if (last.context == nullptr) last.context = context;
  require(locate(m, last, nullptr), kIllegalAddress);
}

// Copies `size` bytes, which are at the place `at` of all bytes of the copy.
void deliver(const Copy& copy, const Piece& to, const Piece& from, std::uint64_t size, std::uint64_t at) {
  if (copy.substitute == nullptr) return copy_sparsely(to, from, size);
  const Substitute& instead = *copy.substitute;
  if (!instead.bytes.empty()) {
    std::memcpy(to.data, instead.bytes.data() + at, size);
    return;
  }
  const auto part = [](const Piece& piece, std::uint64_t begin, std::uint64_t end) {
    return Piece{piece.data + begin, end - begin, piece.store};
  };
  std::uint64_t done = 0;
  auto zero = std::upper_bound(instead.zeros.begin(), instead.zeros.end(), at,
                               [](std::uint64_t place, const auto& zeros) { return place < zeros.second; });
  for (; zero != instead.zeros.end() && zero->first < at + size; ++zero) {
    const std::uint64_t begin = std::max(zero->first, at) - at, end = std::min(zero->second - at, size);
    copy_sparsely(part(to, done, begin), part(from, done, begin), begin - done);
    fill_sparsely(part(to, begin, end), 0);
    done = end;
  }
  copy_sparsely(part(to, done, size), part(from, done, size), size - done);
}

// Takes the bytes of a pageable source now, packed: the program may change them as soon as the call returns.
void stage(Copy& copy) {
  copy.staged = std::make_shared<std::vector<char>>();
  copy.staged->reserve(copy.size());
  each_row(copy, copy.src, [&](std::uint64_t offset) {
    const char* row = reinterpret_cast<const char*>(copy.src.address + offset);
    copy.staged->insert(copy.staged->end(), row, row + copy.width);
  });
  copy.src.pitch = copy.width;
  copy.src.slice = copy.width * copy.height;
}

// A copy or fill as a graph's node describes it.
std::shared_ptr<const NodeParams> describe(const Copy& copy) {
  cu::Memcpy3D given{};
  const auto type = [](const Side& side) { return side.managed ? cu::MemoryType::kUnified : cu::MemoryType::kHost; };
  const auto rows = [](const Side& side) { return side.pitch > 0 ? side.slice / side.pitch : 0; };
  given.src_type = type(copy.src);
  given.src_host = reinterpret_cast<const void*>(copy.src.managed ? 0 : copy.src.address);
  given.src_device = copy.src.managed ? copy.src.address : 0;
  given.src_pitch = copy.src.pitch;
  given.src_height = rows(copy.src);
  given.dst_type = type(copy.dst);
  given.dst_host = reinterpret_cast<void*>(copy.dst.managed ? 0 : copy.dst.address);
  given.dst_device = copy.dst.managed ? copy.dst.address : 0;
  given.dst_pitch = copy.dst.pitch;
  given.dst_height = rows(copy.dst);
  given.width = copy.width;
  given.height = copy.height;
  given.depth = copy.depth;
  return std::make_shared<const NodeParams>(NodeParams{given});
}

std::shared_ptr<const NodeParams> describe(const Fill& fill) {
  return std::make_shared<const NodeParams>(NodeParams{cu::MemsetNodeParams{.dst = fill.address,
                                                                            .pitch = fill.pitch,
                                                                            .value = fill.value,
                                                                            .element = fill.unit,
                                                                            .width = fill.row / fill.unit,
                                                                            .height = fill.rows}});
}

// Host to device, device to host and device to device say which end is whose, and are held to it.
Copy directed(Call& call, std::uint64_t dst, bool dst_device, std::uint64_t src, bool src_device, std::size_t size) {
  Copy copy = unified_copy(call, dst, src, size);
  require(size == 0 || ((copy.dst.managed || !dst_device) && (copy.src.managed || !src_device)), kIllegalAddress);
  return copy;
}

Result enter_copy(std::string_view name, cu::Stream stream, bool synchronous, const std::function<Copy(Call&)>& make) {
  return enter(name, Need::kContext, [&](Call& call) { return queue_copy(call, make(call), stream, synchronous); });
}

Copy peer(Call& call, cu::DevicePtr dst, cu::Context dst_context, cu::DevicePtr src, cu::Context src_context,
          std::size_t size) {
  require(dst_context != nullptr && src_context != nullptr, kInvalidContext);
  const ContextRef to = context_of(call, dst_context);
  const ContextRef from = context_of(call, src_context);
  Copy copy = directed(call, dst, true, src, true, size);
  copy.dst_context = to;
  copy.src_context = from;
  return copy;
}

void fill_piece(const Piece& piece, unsigned value, unsigned unit) {
  if (unit == 1 || value == 0) return fill_sparsely(piece, static_cast<unsigned char>(value));
  for (std::uint64_t at = 0; at < piece.size; at += unit) std::memcpy(piece.data + at, &value, unit);
}

Effect row_effect(const Fill& fill, std::uint64_t row, const std::shared_ptr<const ContextState>& context) {
  return {
      .address = fill.address + row * fill.pitch, .size = fill.row, .write = true, .copy = false, .context = context};
}

Result run_fill(const Fill& fill, const std::shared_ptr<const ContextState>& context) {
  std::vector<Piece> pieces;
  {
    const std::lock_guard lock(machine().mutex);
    if (!machine().initialised) return kSuccess;
    for (std::uint64_t y = 0; y < fill.rows; ++y) {
      if (!locate(machine(), row_effect(fill, y, context), &pieces)) return kIllegalAddress;
    }
  }
  for (const Piece& piece : pieces) fill_piece(piece, fill.value, fill.unit);
  return kSuccess;
}

template <typename Value>
Result fill(std::string_view name, cu::DevicePtr dst, Value value, std::size_t count, cu::Stream handle,
            bool synchronous) {
  return enter(name, Need::kContext, [&](Call& call) {
    require(count <= SIZE_MAX / sizeof(Value), kInvalidValue);
    const Fill one{.address = dst, .row = count * sizeof(Value), .value = value, .unit = sizeof(Value)};
    return queue_fill(call, one, handle, synchronous);
  });
}

template <typename Value>
Result fill_rows(std::string_view name, cu::DevicePtr dst, std::size_t pitch, Value value, std::size_t width,
                 std::size_t height, cu::Stream handle, bool synchronous) {
  return enter(name, Need::kContext, [&](Call& call) {
    require(width <= SIZE_MAX / sizeof(Value), kInvalidValue);
    const Fill rows{.address = dst,
                    .pitch = pitch,
                    .row = width * sizeof(Value),
                    .rows = height,
                    .value = value,
                    .unit = sizeof(Value)};
    return queue_fill(call, rows, handle, synchronous);
  });
}

template <typename Description>
Result copy_rows(std::string_view name, const Description* given, cu::Stream stream, bool synchronous) {
  return enter(name, Need::kContext, [&](Call& call) {
    require(given != nullptr, kInvalidValue);
    return queue_copy(call, described_copy(call, *given), stream, synchronous);
  });
}

// What the two descriptions of a copy have in common: one side of it.
struct GivenSide {
  cu::MemoryType type;
  const void* host;
  cu::DevicePtr device;
  std::size_t x = 0, y = 0, z = 0;
  std::size_t pitch = 0, height = 0;  // of a slice; 0: as the copy needs
};

Side described_side(Call& call, const GivenSide& given, const Copy& copy) {
  require(given.type != cu::MemoryType::kArray, kNotSupported);
  const bool host = given.type == cu::MemoryType::kHost;
  require(host || given.type == cu::MemoryType::kDevice || given.type == cu::MemoryType::kUnified, kInvalidValue);
  require(std::max({given.x, given.y, given.z}) <= kMostBytes && given.height <= kMostBytes, kInvalidValue);
  Side side{.address = host ? address_of(given.host) : given.device, .managed = false};
  side.pitch = given.pitch != 0 ? given.pitch : given.x + copy.width;
  const std::size_t height = given.height != 0 ? given.height : given.y + copy.height;
  require(given.pitch <= static_cast<unsigned>(kMaxPitchBytes) && side.pitch >= given.x + copy.width, kInvalidValue);
  require(copy.depth <= 1 || height >= given.y + copy.height, kInvalidValue);
  side.slice = side.pitch * height;
  side.address += given.z * side.slice + given.y * side.pitch + given.x;
  side.managed = is_managed_address(call.machine, side.address);
  if (copy.size() > 0) {
    require(given.type != cu::MemoryType::kDevice || side.managed, kIllegalAddress);
    require(side.address != 0, kInvalidValue);
  }
  return side;
}

void check_extent(const Copy& copy) {
  const std::uint64_t most = kMostBytes;
  require(copy.width <= most && copy.height <= most && copy.depth <= most, kInvalidValue);
  require(copy.width == 0 || copy.height <= most / copy.width, kInvalidValue);
  require(copy.width == 0 || copy.height == 0 || copy.depth <= most / (copy.width * copy.height), kInvalidValue);
}

}  // namespace

void join_rows(Copy& copy) {
  const auto joined = [&](const Side& side) { return copy.height == 1 || side.pitch == copy.width; };
  if (!joined(copy.dst) || !joined(copy.src)) return;
  copy.width *= copy.height;
  copy.height = 1;
  const auto stacked = [&](const Side& side) { return copy.depth == 1 || side.slice == copy.width; };
  if (!stacked(copy.dst) || !stacked(copy.src)) return;
  copy.width *= copy.depth;
  copy.depth = 1;
}

// Runs on a worker, or on the calling thread after it let go of the machine.
Result run_copy(const Copy& copy) {
  std::vector<Piece> to, from;
  {
    const std::lock_guard lock(machine().mutex);
    if (!machine().initialised) return kSuccess;
    if (!pieces_of(copy, copy.dst, true, to) || !pieces_of(copy, copy.src, false, from)) return kIllegalAddress;
  }
  std::uint64_t at = 0;
  for (std::size_t i = 0, j = 0; i < to.size() && j < from.size();) {
    const std::uint64_t size = std::min(to[i].size, from[j].size);
    deliver(copy, to[i], from[j], size, at);
    at += size;
    to[i].data += size;
    from[j].data += size;
    if ((to[i].size -= size) == 0) ++i;
    if ((from[j].size -= size) == 0) ++j;
  }
  return kSuccess;
}

Copy unified_copy(Call& call, std::uint64_t dst, std::uint64_t src, std::uint64_t size) {
  Machine& m = call.machine;
  return {.dst = {.address = dst, .managed = is_managed_address(m, dst)},
          .src = {.address = src, .managed = is_managed_address(m, src)},
          .width = size};
}

Copy described_copy(Call& call, const cu::Memcpy2D& given) {
  Copy copy{.width = given.width, .height = given.height};
  check_extent(copy);
  const GivenSide src{.type = given.src_type,
                      .host = given.src_host,
                      .device = given.src_device,
                      .x = given.src_x,
                      .y = given.src_y,
                      .pitch = given.src_pitch};
  const GivenSide dst{.type = given.dst_type,
                      .host = given.dst_host,
                      .device = given.dst_device,
                      .x = given.dst_x,
                      .y = given.dst_y,
                      .pitch = given.dst_pitch};
  copy.src = described_side(call, src, copy);
  copy.dst = described_side(call, dst, copy);
  return copy;
}

Copy described_copy(Call& call, const cu::Memcpy3D& given) {
  require(given.src_lod == 0 && given.dst_lod == 0, kInvalidValue);
  Copy copy{.width = given.width, .height = given.height, .depth = given.depth};
  check_extent(copy);
  const GivenSide src{.type = given.src_type,
                      .host = given.src_host,
                      .device = given.src_device,
                      .x = given.src_x,
                      .y = given.src_y,
                      .z = given.src_z,
                      .pitch = given.src_pitch,
                      .height = given.src_height};
  const GivenSide dst{.type = given.dst_type,
                      .host = given.dst_host,
                      .device = given.dst_device,
                      .x = given.dst_x,
                      .y = given.dst_y,
                      .z = given.dst_z,
                      .pitch = given.dst_pitch,
                      .height = given.dst_height};
  copy.src = described_side(call, src, copy);
  copy.dst = described_side(call, dst, copy);
  return copy;
}

void check_fill(const Fill& fill) {
  require(fill.address % fill.unit == 0, kInvalidValue);
  if (fill.rows <= 1) return;
  require(fill.pitch % fill.unit == 0 && fill.pitch >= fill.row && fill.pitch <= static_cast<unsigned>(kMaxPitchBytes),
          kInvalidValue);
  require(fill.rows <= kMostBytes / std::max<std::uint64_t>(fill.pitch, 1), kInvalidValue);
}

Work copy_work(std::string_view name, Copy copy, const ContextRef& context) {
  if (copy.dst_context == nullptr) copy.dst_context = context;
  if (copy.src_context == nullptr) copy.src_context = context;
  join_rows(copy);
  Work work{.name = name, .bytes = copy.size(), .node = cu::GraphNodeType::kMemcpy};
  add_effects(work, copy, copy.dst, true);
  add_effects(work, copy, copy.src, false);
  work.run = [copy] { return run_copy(copy); };
  return work;
}

Work fill_work(std::string_view name, const Fill& fill, const ContextRef& context) {
  Work work{.name = name, .bytes = fill.row * fill.rows, .node = cu::GraphNodeType::kMemset};
  for (std::uint64_t y = 0; y < fill.rows; ++y) work.effects.push_back(row_effect(fill, y, context));
  work.run = [fill, context = std::shared_ptr<const ContextState>(context)] { return run_fill(fill, context); };
  return work;
}

Result queue_copy(Call& call, Copy copy, cu::Stream handle, bool synchronous) {
  Machine& m = call.machine;
  const StreamRef stream = stream_of(call, handle);
  if (synchronous) check_may_wait(call, stream);
  if (copy.size() == 0) return kSuccess;
  require(copy.dst.address != 0 && copy.src.address != 0, kInvalidValue);
  check_last_row(m, copy, copy.dst, true, stream->context);
  check_last_row(m, copy, copy.src, false, stream->context);
  const bool captured = stream->capture != nullptr;
  if (!copy.src.managed && !captured) {
    const Work checked = copy_work(call.name, copy, stream->context);
    for (const Effect& effect : checked.effects) require(locate(m, effect, nullptr), kIllegalAddress);
    stage(copy);
    if (synchronous) wait_for_stream(call, stream);  // for what came before, and only for that
  }
  Work work = copy_work(call.name, copy, stream->context);
  if (captured) work.params = describe(copy);
  if (captured || m.values.on()) {
    work.track = copy_tracker(copy, stream->context, captured ? Origin::kGraph : Origin::kCall);
  }
  submit(call, stream, std::move(work));
  const bool to_pageable = !copy.dst.managed;
  const bool stays =
      may_return_early(m, copy.dst.address) && (!copy.src.managed || may_return_early(m, copy.src.address));
  if (!captured && (to_pageable || (synchronous && !stays))) wait_for_stream(call, stream);
  return kSuccess;
}

Result queue_fill(Call& call, const Fill& given, cu::Stream handle, bool synchronous) {
  const StreamRef stream = stream_of(call, handle);
  if (synchronous) check_may_wait(call, stream);
  check_fill(given);
  if (given.row == 0 || given.rows == 0) return kSuccess;
  Fill fill = given;
  if (fill.rows == 1 || fill.pitch == fill.row)
    fill = {.address = given.address, .row = given.row * given.rows, .value = given.value, .unit = given.unit};
  // As for copies, before rows are listed.
  require(locate(call.machine, row_effect(fill, fill.rows - 1, stream->context), nullptr), kIllegalAddress);
  Work work = fill_work(call.name, fill, stream->context);
  if (stream->capture) work.params = describe(given);
  if (stream->capture || call.machine.values.on()) work.track = fill_tracker(fill);
  submit(call, stream, std::move(work));
  if (synchronous && !may_return_early(call.machine, fill.address)) wait_for_stream(call, stream);
  return kSuccess;
}

}  // namespace cudasim

using namespace cudasim;
using cu::Context;
using cu::DevicePtr;
using cu::Stream;

CUDASIM_EXPORT Result cuMemcpy(DevicePtr dst, DevicePtr src, std::size_t size) {
  return enter_copy("cuMemcpy", nullptr, true, [&](Call& call) { return unified_copy(call, dst, src, size); });
}

CUDASIM_EXPORT Result cuMemcpyAsync(DevicePtr dst, DevicePtr src, std::size_t size, Stream stream) {
  return enter_copy("cuMemcpyAsync", stream, false, [&](Call& call) { return unified_copy(call, dst, src, size); });
}

CUDASIM_EXPORT Result cuMemcpyHtoD_v2(DevicePtr dst, const void* src, std::size_t size) {
  return enter_copy("cuMemcpyHtoD", nullptr, true,
                    [&](Call& call) { return directed(call, dst, true, address_of(src), false, size); });
}

CUDASIM_EXPORT Result cuMemcpyDtoH_v2(void* dst, DevicePtr src, std::size_t size) {
  return enter_copy("cuMemcpyDtoH", nullptr, true,
                    [&](Call& call) { return directed(call, address_of(dst), false, src, true, size); });
}

CUDASIM_EXPORT Result cuMemcpyDtoD_v2(DevicePtr dst, DevicePtr src, std::size_t size) {
  return enter_copy("cuMemcpyDtoD", nullptr, true,
                    [&](Call& call) { return directed(call, dst, true, src, true, size); });
}

CUDASIM_EXPORT Result cuMemcpyHtoDAsync_v2(DevicePtr dst, const void* src, std::size_t size, Stream stream) {
  return enter_copy("cuMemcpyHtoDAsync", stream, false,
                    [&](Call& call) { return directed(call, dst, true, address_of(src), false, size); });
}

CUDASIM_EXPORT Result cuMemcpyDtoHAsync_v2(void* dst, DevicePtr src, std::size_t size, Stream stream) {
  return enter_copy("cuMemcpyDtoHAsync", stream, false,
                    [&](Call& call) { return directed(call, address_of(dst), false, src, true, size); });
}

CUDASIM_EXPORT Result cuMemcpyDtoDAsync_v2(DevicePtr dst, DevicePtr src, std::size_t size, Stream stream) {
  return enter_copy("cuMemcpyDtoDAsync", stream, false,
                    [&](Call& call) { return directed(call, dst, true, src, true, size); });
}

CUDASIM_EXPORT Result cuMemcpyPeer(DevicePtr dst, Context dst_context, DevicePtr src, Context src_context,
                                   std::size_t size) {
  return enter_copy("cuMemcpyPeer", nullptr, true,
                    [&](Call& call) { return peer(call, dst, dst_context, src, src_context, size); });
}

CUDASIM_EXPORT Result cuMemcpyPeerAsync(DevicePtr dst, Context dst_context, DevicePtr src, Context src_context,
                                        std::size_t size, Stream stream) {
  return enter_copy("cuMemcpyPeerAsync", stream, false,
                    [&](Call& call) { return peer(call, dst, dst_context, src, src_context, size); });
}

CUDASIM_EXPORT Result cuMemsetD8_v2(DevicePtr dst, unsigned char value, std::size_t count) {
  return fill("cuMemsetD8", dst, value, count, nullptr, true);
}

CUDASIM_EXPORT Result cuMemsetD16_v2(DevicePtr dst, unsigned short value, std::size_t count) {
  return fill("cuMemsetD16", dst, value, count, nullptr, true);
}

CUDASIM_EXPORT Result cuMemsetD32_v2(DevicePtr dst, unsigned value, std::size_t count) {
  return fill("cuMemsetD32", dst, value, count, nullptr, true);
}

CUDASIM_EXPORT Result cuMemsetD8Async(DevicePtr dst, unsigned char value, std::size_t count, Stream stream) {
  return fill("cuMemsetD8Async", dst, value, count, stream, false);
}

CUDASIM_EXPORT Result cuMemsetD16Async(DevicePtr dst, unsigned short value, std::size_t count, Stream stream) {
  return fill("cuMemsetD16Async", dst, value, count, stream, false);
}

CUDASIM_EXPORT Result cuMemsetD32Async(DevicePtr dst, unsigned value, std::size_t count, Stream stream) {
  return fill("cuMemsetD32Async", dst, value, count, stream, false);
}

CUDASIM_EXPORT Result cuMemcpy2D_v2(const cu::Memcpy2D* copy) { return copy_rows("cuMemcpy2D", copy, nullptr, true); }

CUDASIM_EXPORT Result cuMemcpy2DUnaligned_v2(const cu::Memcpy2D* copy) {
  return copy_rows("cuMemcpy2DUnaligned", copy, nullptr, true);
}

CUDASIM_EXPORT Result cuMemcpy2DAsync_v2(const cu::Memcpy2D* copy, Stream stream) {
  return copy_rows("cuMemcpy2DAsync", copy, stream, false);
}

CUDASIM_EXPORT Result cuMemcpy3D_v2(const cu::Memcpy3D* copy) { return copy_rows("cuMemcpy3D", copy, nullptr, true); }

CUDASIM_EXPORT Result cuMemcpy3DAsync_v2(const cu::Memcpy3D* copy, Stream stream) {
  return copy_rows("cuMemcpy3DAsync", copy, stream, false);
}

CUDASIM_EXPORT Result cuMemsetD2D8_v2(DevicePtr dst, std::size_t pitch, unsigned char value, std::size_t width,
                                      std::size_t height) {
  return fill_rows("cuMemsetD2D8", dst, pitch, value, width, height, nullptr, true);
}

CUDASIM_EXPORT Result cuMemsetD2D8Async(DevicePtr dst, std::size_t pitch, unsigned char value, std::size_t width,
                                        std::size_t height, Stream stream) {
  return fill_rows("cuMemsetD2D8Async", dst, pitch, value, width, height, stream, false);
}

CUDASIM_EXPORT Result cuMemsetD2D16_v2(DevicePtr dst, std::size_t pitch, unsigned short value, std::size_t width,
                                       std::size_t height) {
  return fill_rows("cuMemsetD2D16", dst, pitch, value, width, height, nullptr, true);
}

CUDASIM_EXPORT Result cuMemsetD2D16Async(DevicePtr dst, std::size_t pitch, unsigned short value, std::size_t width,
                                         std::size_t height, Stream stream) {
  return fill_rows("cuMemsetD2D16Async", dst, pitch, value, width, height, stream, false);
}

CUDASIM_EXPORT Result cuMemsetD2D32_v2(DevicePtr dst, std::size_t pitch, unsigned value, std::size_t width,
                                       std::size_t height) {
  return fill_rows("cuMemsetD2D32", dst, pitch, value, width, height, nullptr, true);
}

CUDASIM_EXPORT Result cuMemsetD2D32Async(DevicePtr dst, std::size_t pitch, unsigned value, std::size_t width,
                                         std::size_t height, Stream stream) {
  return fill_rows("cuMemsetD2D32Async", dst, pitch, value, width, height, stream, false);
}
