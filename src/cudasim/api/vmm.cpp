// Virtual memory management: addresses, handles, mappings and access. Checks every rule.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cudasim/api/capture.hpp"
#include "cudasim/api/contexts.hpp"
#include "cudasim/machine/machine.hpp"

namespace cudasim {
namespace {

bool is_power_of_two(std::uint64_t n) { return n != 0 && (n & (n - 1)) == 0; }

Result enter_vmm(std::string_view name, Body body) {
  return enter(name, Need::kDriver, [&](Call& call) {
    require(call.machine.settings.vmm, kNotSupported);
    return body(call);
  });
}

bool is_host(cu::MemLocationType type) {
  return type == cu::MemLocationType::kHost || type == cu::MemLocationType::kHostNuma;
}

// The device of the memory described; null for host memory. Throws Refusal.
DeviceState* check_prop(Call& call, const cu::MemAllocationProp* prop) {
  require(prop != nullptr && prop->type == cu::MemAllocationType::kPinned, kInvalidValue);
  const cu::MemHandleType types = prop->requested_handle_types;
  if (is_host(prop->location.type)) {
    require(types == cu::MemHandleType::kNone, kInvalidValue);
    return nullptr;
  }
  require(prop->location.type == cu::MemLocationType::kDevice, kInvalidValue);
  DeviceState& device = call.machine.device(prop->location.id);
  require(types == cu::MemHandleType::kNone || types == cu::MemHandleType::kPosixFileDescriptor, kNotSupported);
  require(prop->gpu_direct_rdma_capable == 0 || call.machine.settings.rdma != Rdma::kNo, kNotSupported);
  return &device;
}

std::uint64_t reserved_bytes(Machine& m) {
  std::uint64_t bytes = 0;
  m.space->each_range([&](const Range& range) { bytes += range.kind == RangeKind::kReservation ? range.size : 0; });
  return bytes;
}

cu::MemHandle add_handle(Machine& m, const PhysicalRef& physical) {
  ++physical->handles;
  m.handles.emplace(physical->id, physical);
  return physical->id;
}

PhysicalRef handle_of(Call& call, cu::MemHandle handle) {
  const auto it = call.machine.handles.find(handle);
  require(it != call.machine.handles.end(), kInvalidValue);
  return it->second;
}

// Memory that can be shared with another process has a file of its own.
void make_shareable(Physical& physical, std::unique_ptr<Store> store) {
  physical.own_store = std::move(store);
  physical.store = physical.own_store.get();
  physical.offset = 0;
}

void check_removed(Call& call, const std::vector<Mapping*>& run) {
  if (!call.machine.checker.on()) return;
  for (const Mapping* mapping : run) {
    call.machine.checker.check_removal(call.name, mapping->physical->history, 0, mapping->size, mapping->address);
  }
}

// The mappings that make up the range exactly. Throws Refusal if they do not.
std::vector<Mapping*> mapped_run(Call& call, std::uint64_t ptr, std::size_t size) {
  const Range* range = call.machine.space->find(ptr);
  require(size > 0 && range != nullptr && range->kind == RangeKind::kReservation, kInvalidValue);
  std::vector<Mapping*> run = call.machine.space->tiles(ptr, size);
  require(!run.empty(), kInvalidValue);
  return run;
}

// cuda.h says that unmapping and setting access may synchronise. With the setting sync_unmap they wait for all queued
// work of the devices concerned. Returns whether it waited: then the mappings may have changed.
bool wait_for_devices(Call& call, const std::vector<Mapping*>& run) {
  Machine& m = call.machine;
  if (!m.settings.sync_unmap) return false;
  std::uint64_t devices = 0;
  for (const Mapping* mapping : run) {
    devices |= mapping->readable;
    if (mapping->physical->device != nullptr) devices |= mapping->physical->device->bit();
  }
  std::vector<Mark> marks;
  for (const auto& [handle, context] : m.contexts.all()) {
    if ((context->device->bit() & devices) == 0) continue;
    for (const StreamRef& stream : streams_of(m, *context)) {
      if (const Mark mark = stream->last(); !mark.reached()) marks.push_back(mark);
    }
  }
  if (marks.empty()) return false;
  call.wait_unlocked(marks);
  return true;
}

struct Rights {
  std::uint64_t readable = 0, writable = 0;
};

Rights rights_after(Call& call, const Mapping& mapping, const cu::MemAccessDesc& desc) {
  Rights rights{mapping.readable, mapping.writable};
  const bool host_memory = is_host(mapping.physical->prop.location.type);
  std::uint64_t bit = kHostBit;
  if (is_host(desc.location.type)) {
    require(host_memory, kInvalidValue);  // the host cannot be given access to a device's memory
  } else {
    require(desc.location.type == cu::MemLocationType::kDevice, kInvalidValue);
    const DeviceState& device = call.machine.device(desc.location.id);
    const cu::MemLocation& owner = mapping.physical->prop.location;
    require(host_memory || owner.id == device.number || call.machine.settings.can_access_peer(device.number, owner.id),
            kInvalidDevice);
    // Not documented. Another process uses the device exclusively, so assume the worst.
    const bool is_taken = call.machine.settings.is_exclusive(device.number) && device.primary == nullptr;
    require(!is_taken, kDeviceUnavailable);
    bit = device.bit();
  }
  // Seen on WSL2, where the device claims to support it (pytorch#192330).
  const bool broken = call.machine.settings.rdma == Rdma::kBroken;
  require(!broken || mapping.physical->prop.gpu_direct_rdma_capable == 0, kUnknown);
  using enum cu::MemAccess;
  require(is_access(desc.flags), kInvalidValue);
  rights.readable = desc.flags == cu::MemAccess::kNone ? rights.readable & ~bit : rights.readable | bit;
  rights.writable = desc.flags == kReadWrite ? rights.writable | bit : rights.writable & ~bit;
  return rights;
}

void set_access(Call& call, const std::vector<Mapping*>& run, const cu::MemAccessDesc* desc, std::size_t count) {
  std::vector<Rights> before;
  for (const Mapping* mapping : run) before.push_back({mapping->readable, mapping->writable});
  const auto restore = [&] {
    for (std::size_t i = 0; i < run.size(); ++i) {
      run[i]->readable = before[i].readable;
      run[i]->writable = before[i].writable;
    }
  };
  try {
    for (Mapping* mapping : run) {
      for (std::size_t i = 0; i < count; ++i) {
        const Rights rights = rights_after(call, *mapping, desc[i]);
        mapping->readable = rights.readable;
        mapping->writable = rights.writable;
      }
    }
    call.machine.space->show(run);
  } catch (const Refusal&) {
    restore();
    throw;
  } catch (const std::bad_alloc&) {  // the kernel allows no more mappings
    restore();
    throw;
  }
}

}  // namespace
}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuMemGetAllocationGranularity(std::size_t* granularity, const cu::MemAllocationProp* prop,
                                                    cu::GranularityOption option) {
  return enter_vmm("cuMemGetAllocationGranularity", [&](Call& call) {
    require(granularity != nullptr, kInvalidValue);
    check_prop(call, prop);
    require(cu::bits(option) <= cu::bits(cu::GranularityOption::kRecommended), kInvalidValue);
    *granularity = call.machine.settings.granularity;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemAddressReserve(cu::DevicePtr* ptr, std::size_t size, std::size_t alignment,
                                          cu::DevicePtr hint, unsigned long long flags) {
  return enter_vmm("cuMemAddressReserve", [&](Call& call) {
    require(ptr != nullptr && flags == 0 && size > 0 && size % kPage == 0 && hint % kPage == 0, kInvalidValue);
    require(alignment == 0 || is_power_of_two(alignment), kInvalidValue);
    require(size <= std::uint64_t{1} << 47 && alignment <= std::uint64_t{1} << 47, kOutOfMemory);
    // The driver aligns at least to the granularity, so that memory can be mapped there.
    const std::uint64_t aligned = std::max<std::uint64_t>(alignment, call.machine.settings.granularity);
    const std::uint64_t limit = call.machine.settings.address_space;
    require(limit == 0 || size <= limit - std::min(limit, reserved_bytes(call.machine)), kOutOfMemory);
    call.priced_bytes = size;
    *ptr = call.machine.space->add(RangeKind::kReservation, size, aligned, hint).address;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemAddressFree(cu::DevicePtr ptr, std::size_t size) {
  return enter_vmm("cuMemAddressFree", [&](Call& call) {
    Space& space = *call.machine.space;
    Range* range = space.find_exact(ptr);
    require(range != nullptr && range->kind == RangeKind::kReservation && range->size == size, kInvalidValue);
    require(!space.any_mapped(ptr, size), kInvalidValue);
    space.erase(*range);
    call.priced_bytes = size;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemCreate(cu::MemHandle* handle, std::size_t size, const cu::MemAllocationProp* prop,
                                  unsigned long long flags) {
  return enter_vmm("cuMemCreate", [&](Call& call) {
    Machine& m = call.machine;
    require(handle != nullptr && flags == 0, kInvalidValue);
    DeviceState* device = check_prop(call, prop);
    require(size > 0 && size % m.settings.granularity == 0, kInvalidValue);
    const PhysicalRef physical = m.new_physical(device, size, m.settings.granularity);
    physical->prop = *prop;
    if (prop->requested_handle_types != cu::MemHandleType::kNone) {
      make_shareable(*physical, std::make_unique<Store>(size));
    }
    call.priced_bytes = size;
    *handle = add_handle(m, physical);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemRelease(cu::MemHandle handle) {
  return enter_vmm("cuMemRelease", [&](Call& call) {
    const PhysicalRef physical = handle_of(call, handle);
    call.priced_bytes = physical->size;
    if (--physical->handles == 0) call.machine.handles.erase(handle);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemRetainAllocationHandle(cu::MemHandle* handle, void* address) {
  return enter_vmm("cuMemRetainAllocationHandle", [&](Call& call) {
    require(handle != nullptr, kInvalidValue);
    const Mapping* mapping = call.machine.space->mapping_at(address_of(address));
    require(mapping != nullptr && !mapping->plain, kInvalidValue);
    *handle = add_handle(call.machine, mapping->physical);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemGetAllocationPropertiesFromHandle(cu::MemAllocationProp* prop, cu::MemHandle handle) {
  return enter_vmm("cuMemGetAllocationPropertiesFromHandle", [&](Call& call) {
    require(prop != nullptr, kInvalidValue);
    *prop = handle_of(call, handle)->prop;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemMap(cu::DevicePtr ptr, std::size_t size, std::size_t offset, cu::MemHandle handle,
                               unsigned long long flags) {
  return enter_vmm("cuMemMap", [&](Call& call) {
    Space& space = *call.machine.space;
    const std::uint64_t granularity = call.machine.settings.granularity;
    const PhysicalRef physical = handle_of(call, handle);
    require(flags == 0 && offset == 0 && size == physical->size, kInvalidValue);
    require(ptr % granularity == 0, kInvalidValue);
    const Range* range = space.find(ptr);
    require(range != nullptr && range->kind == RangeKind::kReservation, kInvalidValue);
    require(size <= range->size - (ptr - range->address), kInvalidValue);
    require(!space.any_mapped(ptr, size), kInvalidValue);
    space.map(ptr, physical, MappingKind::kReserved);
    call.priced_bytes = size;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemUnmap(cu::DevicePtr ptr, std::size_t size) {
  return enter_vmm("cuMemUnmap", [&](Call& call) {
    std::vector<Mapping*> run = mapped_run(call, ptr, size);
    check_safe_in_capture(call);
    if (wait_for_devices(call, run)) run = mapped_run(call, ptr, size);
    check_removed(call, run);
    call.machine.space->unmap(run);
    call.priced_bytes = size;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemSetAccess(cu::DevicePtr ptr, std::size_t size, const cu::MemAccessDesc* desc,
                                     std::size_t count) {
  return enter_vmm("cuMemSetAccess", [&](Call& call) {
    require(desc != nullptr && count > 0, kInvalidValue);
    std::vector<Mapping*> run = mapped_run(call, ptr, size);
    if (wait_for_devices(call, run)) run = mapped_run(call, ptr, size);
    set_access(call, run, desc, count);
    for (Mapping* mapping : run) {  // queued work would find it inaccessible
      if (mapping->readable == 0) check_removed(call, {mapping});
    }
    call.priced_bytes = size;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemGetAccess(unsigned long long* flags, const cu::MemLocation* location, cu::DevicePtr ptr) {
  return enter_vmm("cuMemGetAccess", [&](Call& call) {
    require(flags != nullptr && location != nullptr, kInvalidValue);
    const bool host = is_host(location->type);
    require(host || location->type == cu::MemLocationType::kDevice, kInvalidValue);
    const std::uint64_t bit = host ? kHostBit : call.machine.device(location->id).bit();
    const Mapping* mapping = call.machine.space->mapping_at(ptr);
    require(mapping != nullptr && !mapping->plain, kInvalidValue);
    const cu::MemAccess access = (mapping->writable & bit) != 0   ? cu::MemAccess::kReadWrite
                                 : (mapping->readable & bit) != 0 ? cu::MemAccess::kRead
                                                                  : cu::MemAccess::kNone;
    *flags = cu::bits(access);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemExportToShareableHandle(void* shareable, cu::MemHandle handle, cu::MemHandleType type,
                                                   unsigned long long flags) {
  return enter_vmm("cuMemExportToShareableHandle", [&](Call& call) {
    require(shareable != nullptr && flags == 0, kInvalidValue);
    const PhysicalRef physical = handle_of(call, handle);
    require(type != cu::MemHandleType::kNone && type == physical->prop.requested_handle_types, kInvalidValue);
    const int descriptor = fcntl(physical->store->descriptor(), F_DUPFD_CLOEXEC, 0);
    require(descriptor >= 0, kOperatingSystem);
    call.machine.values.share(*physical);
    *static_cast<int*>(shareable) = descriptor;
    return kSuccess;
  });
}

// The importing process gets the same bytes. Unlike a real driver, it does not know their device: it assumes that of
// the current context, or device 0.
CUDASIM_EXPORT Result cuMemImportFromShareableHandle(cu::MemHandle* handle, void* shareable, cu::MemHandleType type) {
  return enter_vmm("cuMemImportFromShareableHandle", [&](Call& call) {
    Machine& m = call.machine;
    require(handle != nullptr && type == cu::MemHandleType::kPosixFileDescriptor, kInvalidValue);
    const int descriptor = fcntl(static_cast<int>(reinterpret_cast<std::intptr_t>(shareable)), F_DUPFD_CLOEXEC, 0);
    struct stat status{};
    const bool is_ours = descriptor >= 0 && fstat(descriptor, &status) == 0 && status.st_size > 0 &&
                         static_cast<std::uint64_t>(status.st_size) % m.settings.granularity == 0;
    if (!is_ours && descriptor >= 0) close(descriptor);
    require(is_ours, kInvalidValue);
    auto physical = std::make_shared<Physical>();
    physical->id = m.next_id++;
    physical->size = physical->extent = static_cast<std::uint64_t>(status.st_size);
    physical->prop.type = cu::MemAllocationType::kPinned;
    physical->prop.requested_handle_types = type;
    const int device = call.context && call.context->alive ? call.context->device->number : 0;
    physical->prop.location = {cu::MemLocationType::kDevice, device};
    physical->tracking = Tracking::kShared;
    make_shareable(*physical, std::make_unique<Store>(descriptor, physical->size));
    *handle = add_handle(m, physical);
    return kSuccess;
  });
}
