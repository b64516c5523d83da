// Memory that goes to another process by a handle of 64 bytes, and what of sharing is not simulated.
//
// Device memory is part of a file of the process that made it. The handle says which process, which of its descriptors, and
// which part; the other process opens that through /proc, so both must belong to one user.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "cudasim/api/contexts.hpp"
#include "cudasim/api/memory.hpp"

namespace cudasim {
namespace {

constexpr char kIpcMark[8] = {'c', 'u', 'd', 'a', 's', 'i', 'm', '1'};

struct IpcRecord {
  char mark[8];
  std::int32_t process;
  std::int32_t descriptor;
  std::uint64_t offset;
  std::uint64_t size;
  std::uint64_t id;  // of the memory, so that two at one place differ
  std::uint64_t file;
};
static_assert(sizeof(IpcRecord) <= sizeof(cu::IpcMemHandle));

std::uint64_t file_of(int descriptor) {
  struct stat status{};
  return fstat(descriptor, &status) == 0 ? status.st_ino : 0;
}

Range& opened_range(Call& call, cu::DevicePtr ptr) {
  Range* range = call.machine.space->find_exact(ptr);
  require(range != nullptr && range->ipc_opens > 0, kInvalidValue);
  return *range;
}

// Another process's file. Throws Refusal.
std::unique_ptr<Store> open_store(const IpcRecord& record) {
  const std::string path = "/proc/" + std::to_string(record.process) + "/fd/" + std::to_string(record.descriptor);
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  require(descriptor >= 0, kMapFailed);
  if (file_of(descriptor) != record.file) {  // the process that had it is gone, and its number was given again
    close(descriptor);
    throw Refusal{kMapFailed};
  }
  return std::make_unique<Store>(descriptor, record.offset + round_up(record.size, kPage));
}

// The range of memory that this context has opened already.
Range* find_opened(Call& call, const IpcRecord& record) {
  Range* found = nullptr;
  call.machine.space->each_range([&](Range& range) {
    const bool same = range.ipc_opens > 0 && range.context == call.context->handle && range.ipc_id == record.id &&
                      range.ipc_process == record.process;
    if (same) found = &range;
  });
  return found;
}

Result open_handle(cu::DevicePtr* ptr, const cu::IpcMemHandle& handle, unsigned flags) {
  return enter("cuIpcOpenMemHandle", Need::kContext, [&](Call& call) {
    IpcRecord record;
    std::memcpy(&record, handle.bytes, sizeof record);
    require(ptr != nullptr && flags == cu::bits(cu::IpcMemFlag::kLazyEnablePeerAccess), kInvalidValue);
    require(std::memcmp(record.mark, kIpcMark, sizeof kIpcMark) == 0, kInvalidHandle);
    require(record.process != getpid(), kInvalidContext);  // only for other processes
    if (Range* opened = find_opened(call, record)) {
      ++opened->ipc_opens;
      *ptr = opened->address;
      return kSuccess;
    }
    auto physical = std::make_shared<Physical>();
    physical->id = call.machine.next_id++;
    physical->size = record.size;
    physical->extent = round_up(record.size, kPage);
    physical->prop.location = {cu::MemLocationType::kDevice, call.context->device->number};
    physical->own_store = open_store(record);
    physical->store = physical->own_store.get();
    physical->offset = record.offset;
    physical->tracking = Tracking::kShared;
    Range& range = new_allocation(call.machine, RangeKind::kDevice, physical, call.context->device->bit(), kPage);
    range.context = call.context->handle;
    range.ipc_opens = 1;
    range.ipc_id = record.id;
    range.ipc_process = record.process;
    *ptr = range.address;
    return kSuccess;
  });
}

Result unsupported(std::string_view name) {
  return enter(name, Need::kDriver, [](Call&) { return kNotSupported; });
}

}  // namespace
}  // namespace cudasim

using namespace cudasim;
using cu::Device;
using cu::DevicePtr;
using cu::MemHandle;

CUDASIM_EXPORT Result cuIpcGetMemHandle(cu::IpcMemHandle* handle, DevicePtr ptr) {
  return enter("cuIpcGetMemHandle", Need::kContext, [&](Call& call) {
    require(handle != nullptr, kInvalidValue);
    const Range* range = call.machine.space->find(ptr);  // any address of it, as programs rely on
    require(range != nullptr && range->kind == RangeKind::kDevice && !range->of_module && range->ipc_opens == 0,
            kInvalidValue);
    Physical& physical = *call.machine.space->mapping_at(range->address)->physical;
    call.machine.values.share(physical);
    IpcRecord record{.mark = {},
                     .process = getpid(),
                     .descriptor = physical.store->descriptor(),
                     .offset = physical.offset,
                     .size = range->size,
                     .id = physical.id,
                     .file = file_of(physical.store->descriptor())};
    std::memcpy(record.mark, kIpcMark, sizeof record.mark);
    std::memset(handle->bytes, 0, sizeof handle->bytes);
    std::memcpy(handle->bytes, &record, sizeof record);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuIpcOpenMemHandle(DevicePtr* ptr, cu::IpcMemHandle handle, unsigned flags) {
  return open_handle(ptr, handle, flags);
}

CUDASIM_EXPORT Result cuIpcOpenMemHandle_v2(DevicePtr* ptr, cu::IpcMemHandle handle, unsigned flags) {
  return open_handle(ptr, handle, flags);
}

CUDASIM_EXPORT Result cuIpcCloseMemHandle(DevicePtr ptr) {
  bool last = false;
  const Result result = enter("cuIpcCloseMemHandle", Need::kContext, [&](Call& call) {
    Range& range = opened_range(call, ptr);
    last = --range.ipc_opens == 0;
    if (last) wait_for_owner(call, range);
    return kSuccess;
  });
  return result == kSuccess && last ? free_after_wait(ptr) : result;
}

// Events would have to be seen by both processes; the device says that it has none of that kind.
CUDASIM_EXPORT Result cuIpcGetEventHandle(cu::IpcEventHandle*, cu::Event) { return unsupported("cuIpcGetEventHandle"); }
CUDASIM_EXPORT Result cuIpcOpenEventHandle(cu::Event*, cu::IpcEventHandle) {
  return unsupported("cuIpcOpenEventHandle");
}

// Pools are not made for sharing, whatever is asked for.
CUDASIM_EXPORT Result cuMemPoolExportToShareableHandle(void*, cu::MemPool, cu::MemHandleType, unsigned long long) {
  return unsupported("cuMemPoolExportToShareableHandle");
}
CUDASIM_EXPORT Result cuMemPoolImportFromShareableHandle(cu::MemPool*, void*, cu::MemHandleType, unsigned long long) {
  return unsupported("cuMemPoolImportFromShareableHandle");
}
CUDASIM_EXPORT Result cuMemPoolExportPointer(cu::MemPoolPtrExportData*, DevicePtr) {
  return unsupported("cuMemPoolExportPointer");
}
CUDASIM_EXPORT Result cuMemPoolImportPointer(DevicePtr*, cu::MemPool, cu::MemPoolPtrExportData*) {
  return unsupported("cuMemPoolImportPointer");
}

// No device has multicast: these are here to be found by those that look for all they might need.
CUDASIM_EXPORT Result cuMulticastCreate(MemHandle*, const cu::MulticastObjectProp*) {
  return unsupported("cuMulticastCreate");
}
CUDASIM_EXPORT Result cuMulticastAddDevice(MemHandle, Device) { return unsupported("cuMulticastAddDevice"); }
CUDASIM_EXPORT Result cuMulticastBindMem(MemHandle, std::size_t, MemHandle, std::size_t, std::size_t,
                                         unsigned long long) {
  return unsupported("cuMulticastBindMem");
}
CUDASIM_EXPORT Result cuMulticastBindMem_v2(MemHandle, Device, std::size_t, MemHandle, std::size_t, std::size_t,
                                            unsigned long long) {
  return unsupported("cuMulticastBindMem");
}
CUDASIM_EXPORT Result cuMulticastBindAddr(MemHandle, std::size_t, DevicePtr, std::size_t, unsigned long long) {
  return unsupported("cuMulticastBindAddr");
}
CUDASIM_EXPORT Result cuMulticastBindAddr_v2(MemHandle, Device, std::size_t, DevicePtr, std::size_t,
                                             unsigned long long) {
  return unsupported("cuMulticastBindAddr");
}
CUDASIM_EXPORT Result cuMulticastUnbind(MemHandle, Device, std::size_t, std::size_t) {
  return unsupported("cuMulticastUnbind");
}
CUDASIM_EXPORT Result cuMulticastGetGranularity(std::size_t*, const cu::MulticastObjectProp*,
                                                cu::MulticastGranularity) {
  return unsupported("cuMulticastGetGranularity");
}
