// Host memory that the device can access: allocated by the driver, or the program's own memory registered with it. Host
// and device use the same address.
#include "cudasim/api/capture.hpp"
#include "cudasim/api/contexts.hpp"
#include "cudasim/api/memory.hpp"

namespace cudasim {
namespace {

Result allocate_host(Call& call, void** out, std::size_t size, unsigned flags) {
  require(out != nullptr && size > 0 && flags <= 7, kInvalidValue);
  check_safe_in_capture(call);
  const PhysicalRef physical = call.machine.new_physical(nullptr, size, kPage);
  Range& range = new_allocation(call.machine, RangeKind::kHost, physical, kAllDevices, kPage);
  range.context = call.context->handle;
  range.flags = flags;
  *out = reinterpret_cast<void*>(range.address);
  return kSuccess;
}

// The range of host memory that holds a pointer. Throws Refusal.
Range& host_range(Call& call, const void* ptr) {
  Range* range = call.machine.space->find(address_of(ptr));
  require(range != nullptr && (range->kind == RangeKind::kHost || range->kind == RangeKind::kRegistered),
          kInvalidValue);
  return *range;
}

// Whether [begin, begin + size) overlaps memory that is already registered, or the driver's own.
bool overlaps_known(Machine& m, std::uint64_t begin, std::uint64_t size) {
  bool overlaps = false;
  m.space->each_range([&](const Range& r) { overlaps |= r.address < begin + size && begin < r.address + r.size; });
  return overlaps;
}

// Waits for the owner's work before freeing, because the device may be using the memory.
Result remove_host(const char* name, const void* ptr, RangeKind kind, Result unknown) {
  const Result waited = enter(name, Need::kDriver, [&](Call& call) {
    const Range* range = call.machine.space->find_exact(address_of(ptr));
    require(range != nullptr && range->kind == kind, unknown);
    check_safe_in_capture(call);
    wait_for_owner(call, *range);
    return kSuccess;
  });
  if (waited != kSuccess) return waited;
  return free_after_wait(address_of(ptr));
}

}  // namespace
}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuMemAllocHost_v2(void** ptr, std::size_t size) {
  return enter("cuMemAllocHost", Need::kContext, [&](Call& call) { return allocate_host(call, ptr, size, 0); });
}

CUDASIM_EXPORT Result cuMemHostAlloc(void** ptr, std::size_t size, unsigned flags) {
  return enter("cuMemHostAlloc", Need::kContext, [&](Call& call) { return allocate_host(call, ptr, size, flags); });
}

CUDASIM_EXPORT Result cuMemFreeHost(void* ptr) {
  if (ptr == nullptr) return enter("cuMemFreeHost", Need::kDriver, [](Call&) { return kSuccess; });
  return remove_host("cuMemFreeHost", ptr, RangeKind::kHost, kInvalidValue);
}

CUDASIM_EXPORT Result cuMemHostGetDevicePointer_v2(cu::DevicePtr* device, void* host, unsigned flags) {
  return enter("cuMemHostGetDevicePointer", Need::kContext, [&](Call& call) {
    require(device != nullptr && flags == 0, kInvalidValue);
    host_range(call, host);
    *device = address_of(host);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemHostGetFlags(unsigned* flags, void* host) {
  return enter("cuMemHostGetFlags", Need::kContext, [&](Call& call) {
    require(flags != nullptr, kInvalidValue);
    *flags = host_range(call, host).flags;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemHostRegister_v2(void* host, std::size_t size, unsigned flags) {
  return enter("cuMemHostRegister", Need::kContext, [&](Call& call) {
    require(host != nullptr && size > 0 && flags <= 15, kInvalidValue);
    require(address_of(host) + size > address_of(host), kInvalidValue);
    require((flags & cu::bits(cu::HostRegisterFlag::kIoMemory)) == 0, kNotSupported);
    Machine& m = call.machine;
    require(!m.space->contains(address_of(host)), kInvalidValue);
    require(!overlaps_known(m, address_of(host), size), kHostMemoryAlreadyRegistered);
    auto physical = std::make_shared<Physical>();
    physical->id = m.next_id++;
    physical->size = size;
    physical->direct = static_cast<char*>(host);
    Range& range = m.space->add_registered(address_of(host), size);
    range.context = call.context->handle;
    range.flags = flags;
    Mapping& mapping = m.space->map(address_of(host), physical, MappingKind::kPlain);
    mapping.readable = kAllDevices;
    mapping.writable = (flags & cu::bits(cu::HostRegisterFlag::kReadOnly)) != 0 ? 0 : kAllDevices;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemHostUnregister(void* host) {
  if (host == nullptr) return enter("cuMemHostUnregister", Need::kDriver, [](Call&) { return kInvalidValue; });
  return remove_host("cuMemHostUnregister", host, RangeKind::kRegistered, kHostMemoryNotRegistered);
}
