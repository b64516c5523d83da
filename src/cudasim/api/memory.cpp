// Plain allocations: cuMemAlloc, managed memory, and the attributes of pointers.
#include "cudasim/api/memory.hpp"

#include <cstring>

#include "cudasim/api/capture.hpp"
#include "cudasim/api/contexts.hpp"
#include "cudasim/api/devices.hpp"
#include "cudasim/api/pools.hpp"
#include "cudasim/machine/submit.hpp"

namespace cudasim {
namespace {

constexpr std::uint64_t kPitchUnit = 512;
constexpr std::uint64_t kLargeAlignment = std::uint64_t{2} << 20;

std::uint64_t alignment_for(std::uint64_t size) { return size >= kLargeAlignment ? kLargeAlignment : kPage; }

Result allocate(Call& call, cu::DevicePtr* out, std::size_t size, RangeKind kind, unsigned flags) {
  require(out != nullptr && size > 0, kInvalidValue);
  check_safe_in_capture(call);
  Machine& m = call.machine;
  DeviceState* device = call.context->device;
  const bool managed = kind == RangeKind::kManaged;
  // Managed memory counts as host memory, because it can exceed the device's.
  const PhysicalRef physical = m.new_physical(managed ? nullptr : device, size, kPage);
  if (managed) m.values.begin_managed(*physical);
  Range& range = new_allocation(m, kind, physical, managed ? kAllDevices : device->bit(), alignment_for(size));
  range.context = call.context->handle;
  range.flags = flags;
  call.priced_bytes = size;
  *out = range.address;
  return kSuccess;
}

template <typename Value>
bool store_value(void* data, Value value) {
  std::memcpy(data, &value, sizeof value);
  return true;
}

// Stores the attribute of a pointer into `range`. False if it does not have that attribute.
bool attribute(Call& call, const Range& range, cu::PointerAttribute what, std::uint64_t ptr, void* data) {
  using enum cu::PointerAttribute;
  Mapping* mapping = call.machine.space->mapping_at(ptr);
  const bool host_pool = range.kind == RangeKind::kPool && mapping->physical->device == nullptr;
  const bool host = range.kind == RangeKind::kHost || range.kind == RangeKind::kRegistered || host_pool;
  const DeviceState* device = mapping != nullptr ? mapping->physical->device : nullptr;
  const ContextRef owner = range.context != nullptr ? call.machine.contexts.find(range.context) : nullptr;
  if (device == nullptr && owner) device = owner->device;
  switch (what) {
    case kContext:
      return store_value(data, range.context);
    case kMemoryType:
      return store_value(data, host ? cu::MemoryType::kHost : cu::MemoryType::kDevice);
    case kDevicePointer:
      return store_value(data, cu::DevicePtr{ptr});
    case kHostPointer:
      return (host || range.kind == RangeKind::kManaged) && store_value(data, ptr);
    case kSyncMemops:
      return store_value(data, range.sync_memops ? 1 : 0);
    case kBufferId:
      return store_value(data, range.id);
    case kIsManaged:
      return store_value(data, range.kind == RangeKind::kManaged ? 1 : 0);
    case kDeviceOrdinal:
      return store_value(data, device != nullptr ? device->number : -2);
    case kIsLegacyIpcCapable:
      return store_value(data, range.kind == RangeKind::kDevice && !range.of_module && range.ipc_opens == 0 ? 1 : 0);
    case kRangeStart:
      return store_value(data, range.address);
    case kRangeSize:
      return store_value(data, range.size);
    case kMapped:
      return store_value(data, mapping != nullptr ? 1 : 0);
    case kAllowedHandleTypes:
      return store_value(data, mapping != nullptr ? cu::bits(mapping->physical->prop.requested_handle_types) : 0U);
    case kIsGpuDirectRdmaCapable:
      return store_value(data, mapping != nullptr && mapping->physical->prop.gpu_direct_rdma_capable != 0 ? 1 : 0);
    case kAccessFlags: {
      if (mapping == nullptr || !call.context || !call.context->alive) return false;
      const std::uint64_t bit = call.context->device->bit();
      return store_value(data, (mapping->readable & bit) == 0   ? cu::MemAccess::kNone
                               : (mapping->writable & bit) == 0 ? cu::MemAccess::kRead
                                                                : cu::MemAccess::kReadWrite);
    }
    case kMempoolHandle:
      return store_value(data, range.pool);
    case kMappingSize:
      return mapping != nullptr && store_value(data, std::size_t{mapping->size});
    case kMappingBase:
      return mapping != nullptr && store_value(data, cu::DevicePtr{mapping->address});
    case kMemoryBlockId:
      return mapping != nullptr && store_value(data, mapping->physical->id);
  }
  return false;
}

std::size_t attribute_size(cu::PointerAttribute what) {
  using enum cu::PointerAttribute;
  switch (what) {
    case kMemoryType:
    case kSyncMemops:
    case kIsManaged:
    case kDeviceOrdinal:
    case kIsLegacyIpcCapable:
    case kMapped:
    case kIsGpuDirectRdmaCapable:
    case kAccessFlags:
      return 4;
    default:
      return 8;
  }
}

Range* range_of(Call& call, std::uint64_t ptr) {
  Range* range = call.machine.space->find(ptr);
  return range != nullptr && !range->freed ? range : nullptr;
}

}  // namespace

Range& new_allocation(Machine& m, RangeKind kind, const PhysicalRef& physical, std::uint64_t devices,
                      std::uint64_t alignment) {
  Range& range = m.space->add(kind, physical->size, alignment, 0);
  try {
    Mapping& mapping = m.space->map(range.address, physical, MappingKind::kPlain);
    mapping.readable = mapping.writable = devices;
    m.space->show({&mapping});
  } catch (...) {
    if (Mapping* mapping = m.space->mapping_at(range.address)) m.space->unmap({mapping});
    m.space->erase(range);
    throw;
  }
  return range;
}

void free_allocation(Machine& m, Range& range, std::string_view call) {
  Mapping* mapping = m.space->mapping_at(range.address);
  if (m.checker.on() && !call.empty()) {
    m.checker.check_removal(call, mapping->physical->history, 0, mapping->size, mapping->address);
  }
  m.space->unmap({mapping});
  m.space->erase(range);
}

void wait_for_owner(Call& call, const Range& range) {
  call.context = call.machine.contexts.find(range.context);
  const Result failed = call.context->error.load();
  require(failed == kSuccess, failed);
  for (const StreamRef& stream : streams_of(call.machine, *call.context)) call.wait_for(stream);
}

Result free_after_wait(std::uint64_t address) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  Range* range = m.initialised ? m.space->find_exact(address) : nullptr;
  if (range == nullptr || range->kind == RangeKind::kPool) return kInvalidValue;  // another thread was faster
  free_allocation(m, *range, "");
  return kSuccess;
}

void free_allocations(Machine& m, cu::Context context) {
  std::vector<std::uint64_t> gone;
  m.space->each_range([&](const Range& range) {
    if (range.context == context && range.kind != RangeKind::kReservation) gone.push_back(range.address);
  });
  for (const std::uint64_t address : gone) free_allocation(m, *m.space->find_exact(address), "");
}

}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return enter("cuMemGetInfo", Need::kContext, [&](Call& call) {
    require(free != nullptr && total != nullptr, kInvalidValue);
    const Settings& settings = call.machine.settings;
    const std::uint64_t available = call.machine.free_bytes(*call.context->device);
    // The driver of an integrated device does not count the page cache as free, although it can be allocated.
    const std::uint64_t cached = settings.integrated ? std::min(settings.page_cache, available) : 0;
    *free = available - cached;
    *total = call.context->device->total;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemAlloc_v2(cu::DevicePtr* ptr, std::size_t size) {
  return enter("cuMemAlloc", Need::kContext,
               [&](Call& call) { return allocate(call, ptr, size, RangeKind::kDevice, 0); });
}

CUDASIM_EXPORT Result cuMemAllocManaged(cu::DevicePtr* ptr, std::size_t size, unsigned flags) {
  return enter("cuMemAllocManaged", Need::kContext, [&](Call& call) {
    const bool known = flags == cu::bits(cu::MemAttach::kGlobal) || flags == cu::bits(cu::MemAttach::kHost);
    require(known, kInvalidValue);
    return allocate(call, ptr, size, RangeKind::kManaged, flags);
  });
}

CUDASIM_EXPORT Result cuMemAllocPitch_v2(cu::DevicePtr* ptr, std::size_t* pitch, std::size_t width, std::size_t height,
                                         unsigned element) {
  return enter("cuMemAllocPitch", Need::kContext, [&](Call& call) {
    require(pitch != nullptr && (element == 4 || element == 8 || element == 16), kInvalidValue);
    require(width > 0 && height > 0 && width <= static_cast<unsigned>(kMaxPitchBytes), kInvalidValue);
    const std::size_t row = round_up(width, kPitchUnit);
    require(height <= kMaxDeviceMemory / row, kOutOfMemory);
    allocate(call, ptr, row * height, RangeKind::kDevice, 0);
    *pitch = row;
    return kSuccess;
  });
}

// Waits for all work of the owner first, because programs rely on that; but not for pool memory, where the caller must
// have waited.
CUDASIM_EXPORT Result cuMemFree_v2(cu::DevicePtr ptr) {
  if (ptr == 0) return enter("cuMemFree", Need::kDriver, [](Call&) { return kSuccess; });
  bool pooled = false;
  const Result result = enter("cuMemFree", Need::kDriver, [&](Call& call) {
    Range* range = call.machine.space->find_exact(ptr);
    require(range != nullptr && !range->freed && !range->of_module && range->ipc_opens == 0, kInvalidValue);
    pooled = range->kind == RangeKind::kPool;
    require(pooled || range->kind == RangeKind::kDevice || range->kind == RangeKind::kManaged, kInvalidValue);
    check_safe_in_capture(call);
    call.priced_bytes = range->size;
    if (pooled) {
      return_to_pool(call, *range);
    } else {
      wait_for_owner(call, *range);
    }
    return kSuccess;
  });
  if (result != kSuccess || pooled) return result;
  return free_after_wait(ptr);
}

CUDASIM_EXPORT Result cuMemGetAddressRange_v2(cu::DevicePtr* base, std::size_t* size, cu::DevicePtr ptr) {
  return enter("cuMemGetAddressRange", Need::kContext, [&](Call& call) {
    const Range* range = range_of(call, ptr);
    require(range != nullptr, kNotFound);
    if (base != nullptr) *base = range->address;
    if (size != nullptr) *size = range->size;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuPointerGetAttribute(void* data, cu::PointerAttribute what, cu::DevicePtr ptr) {
  return enter("cuPointerGetAttribute", Need::kDriver, [&](Call& call) {
    require(data != nullptr, kInvalidValue);
    const Range* range = range_of(call, ptr);
    require(range != nullptr && attribute(call, *range, what, ptr, data), kInvalidValue);
    return kSuccess;
  });
}

// Unlike the single form, this one returns zeros for a pointer that the driver does not know.
CUDASIM_EXPORT Result cuPointerGetAttributes(unsigned count, cu::PointerAttribute* what, void** data,
                                             cu::DevicePtr ptr) {
  return enter("cuPointerGetAttributes", Need::kDriver, [&](Call& call) {
    require(count > 0 && what != nullptr && data != nullptr, kInvalidValue);
    const Range* range = range_of(call, ptr);
    for (unsigned i = 0; i < count; ++i) {
      require(data[i] != nullptr, kInvalidValue);
      std::memset(data[i], 0, attribute_size(what[i]));
      if (range == nullptr && what[i] == cu::PointerAttribute::kDeviceOrdinal) store_value(data[i], -2);
      if (range != nullptr) attribute(call, *range, what[i], ptr, data[i]);
    }
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuPointerSetAttribute(const void* value, cu::PointerAttribute what, cu::DevicePtr ptr) {
  return enter("cuPointerSetAttribute", Need::kContext, [&](Call& call) {
    require(value != nullptr && what == cu::PointerAttribute::kSyncMemops, kInvalidValue);
    Range* range = range_of(call, ptr);
    require(range != nullptr && range->kind != RangeKind::kReservation, kInvalidValue);
    unsigned on = 0;
    std::memcpy(&on, value, sizeof on);
    require(on <= 1, kInvalidValue);
    range->sync_memops = on == 1;
    for (const StreamRef& stream : streams_of(call.machine, *call.context)) {
      if (on == 1 && !stream->capture) call.wait_for(stream);  // what is pending is done when this returns
    }
    return kSuccess;
  });
}
