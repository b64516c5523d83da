#include "driver/device.hpp"

#include <algorithm>
#include <atomic>
#include <iterator>

#include "driver/devices.hpp"

namespace arena {
namespace {

// Another thread may begin a capture at any moment.
bool is_capture_error(cu::Result result) {
  return result >= cu::Result::kCaptureUnsupported && result <= cu::Result::kCaptureWrongThread;
}

}  // namespace

Device::Device(std::shared_ptr<const Driver> driver, int number)
    : driver_(std::move(driver)), number_(number), context_(*driver_, number) {
  DeviceInfo info = describe_device(*driver_, number);
  total_ = info.total;
  granule_ = info.granularity;
  rdma_ = info.rdma;
  peers_ = std::move(info.peers);
}

std::uint64_t Device::free() const {
  const ContextScope scope(*driver_, context_.get());
  std::size_t free = 0, total = 0;
  driver_->check(driver_->functions().cuMemGetInfo(&free, &total), "cuMemGetInfo");
  return free;
}

std::optional<std::uint64_t> Device::allocate(std::uint64_t size) const {
  const ContextScope scope(*driver_, context_.get());
  cu::DevicePtr address = 0;
  if (!has_room(count().cuMemAlloc(&address, size), "cuMemAlloc")) return std::nullopt;
  return address;
}

void Device::deallocate(std::uint64_t address) const {
  const ContextScope scope(*driver_, context_.get());
  driver_->check(count().cuMemFree(address), "cuMemFree");
}

std::uint64_t Device::reserve_addresses(std::uint64_t size) const {
  cu::DevicePtr address = 0;
  driver_->check(count().cuMemAddressReserve(&address, size, 0, 0, 0), "cuMemAddressReserve");
  return address;
}

void Device::free_addresses(std::uint64_t address, std::uint64_t size) const {
  driver_->check(count().cuMemAddressFree(address, size), "cuMemAddressFree");
}

std::optional<cu::MemHandle> Device::create(std::uint64_t size, bool for_rdma) const {
  cu::MemAllocationProp prop{};
  prop.type = cu::MemAllocationType::kPinned;
  prop.location = {cu::MemLocationType::kDevice, number_};
  prop.gpu_direct_rdma_capable = for_rdma ? 1 : 0;
  cu::MemHandle handle = 0;
  if (!has_room(count().cuMemCreate(&handle, size, &prop, 0), "cuMemCreate")) return std::nullopt;
  return handle;
}

void Device::release(cu::MemHandle handle) const { driver_->check(count().cuMemRelease(handle), "cuMemRelease"); }

bool Device::map(std::uint64_t address, std::uint64_t size, cu::MemHandle handle) const {
  return has_room(count().cuMemMap(address, size, 0, handle, 0), "cuMemMap");
}

bool Device::set_access(std::uint64_t address, std::uint64_t size, const std::vector<int>& peers) const {
  const auto access_for = [](int device) {
    return cu::MemAccessDesc{{cu::MemLocationType::kDevice, device}, cu::MemAccess::kReadWrite};
  };
  std::vector<cu::MemAccessDesc> access{access_for(number_)};
  std::transform(peers.begin(), peers.end(), std::back_inserter(access), access_for);
  return has_room(count().cuMemSetAccess(address, size, access.data(), access.size()), "cuMemSetAccess");
}

// False if a call ran out of memory; throws for other errors. Under memory pressure WSL2 returns "not ready".
bool Device::has_room(cu::Result result, const char* call) const {
  if (result == cu::Result::kOutOfMemory || result == cu::Result::kNotReady) return false;
  driver_->check(result, call);
  return true;
}

void Device::unmap(std::uint64_t address, std::uint64_t size) const {
  driver_->check(count().cuMemUnmap(address, size), "cuMemUnmap");
}

cu::Stream Device::new_stream() const {
  const ContextScope scope(*driver_, context_.get());
  cu::Stream stream = nullptr;
  driver_->check(count().cuStreamCreate(&stream, cu::bits(cu::StreamFlag::kNonBlocking)), "cuStreamCreate");
  return stream;
}

void Device::delete_stream(cu::Stream stream) const {
  const ContextScope scope(*driver_, context_.get());
  driver_->check(count().cuStreamDestroy(stream), "cuStreamDestroy");
}

cu::Context Device::context_of(cu::Stream stream) const {
  if (driver_->functions().cuStreamGetCtx == nullptr) return nullptr;
  const ContextScope scope(*driver_, context_.get());
  cu::Context context = nullptr;
  driver_->check(count().cuStreamGetCtx(stream, &context), "cuStreamGetCtx");
  return context;
}

std::shared_ptr<const PrimaryContext> Device::primary(cu::Context context) const {
  cu::Device device = 0;
  {
    const ContextScope scope(*driver_, context);
    driver_->check(count().cuCtxGetDevice(&device), "cuCtxGetDevice");
  }
  auto primary = std::make_shared<const PrimaryContext>(*driver_, device);
  return primary->get() == context ? primary : nullptr;
}

// A stream that is no default stream has a context of its own, whichever is current. So the driver is asked as things are, and only
// if it refuses, because this thread has no context or one that failed, again with ours.
template <typename Query>
cu::Result Device::ask_about_stream(const Query& query) const {
  const cu::Result result = query();
  if (result == cu::Result::kSuccess) return result;
  const ContextScope scope(*driver_, context_.get());
  return scope.has_changed() ? query() : result;
}

std::optional<std::uint64_t> Device::stream_id(cu::Stream stream) const {
  if (driver_->functions().cuStreamGetId == nullptr) return std::nullopt;
  unsigned long long id = 0;
  driver_->check(ask_about_stream([&] { return driver_->functions().cuStreamGetId(stream, &id); }), "cuStreamGetId");
  return id;
}

bool Device::is_blocking(cu::Stream stream) const {
  const ContextScope scope(*driver_, context_.get());
  unsigned flags = 0;
  driver_->check(count().cuStreamGetFlags(stream, &flags), "cuStreamGetFlags");
  return (flags & cu::bits(cu::StreamFlag::kNonBlocking)) == 0;
}

cu::Event Device::new_event(cu::Context context) const {
  const ContextScope scope(*driver_, context);
  cu::Event event = nullptr;
  driver_->check(count().cuEventCreate(&event, cu::bits(cu::EventFlag::kDisableTiming)), "cuEventCreate");
  return event;
}

void Device::delete_event(cu::Event event) const { driver_->check(count().cuEventDestroy(event), "cuEventDestroy"); }

bool Device::record(cu::Event event, cu::Stream stream) const {
  const ContextScope scope(*driver_, context_.get());
  const cu::Result result = count().cuEventRecord(event, stream);
  if (is_capture_error(result)) return false;
  driver_->check(result, "cuEventRecord");
  return true;
}

bool Device::record_context(cu::Event event, cu::Context context) const {
  if (has_captures(context)) return false;
  const cu::Result result = count().cuCtxRecordEvent(context, event);
  if (is_capture_error(result)) return false;
  driver_->check(result, "cuCtxRecordEvent");
  return true;
}

bool Device::wait(cu::Stream stream, cu::Event event) const {
  const ContextScope scope(*driver_, context_.get());
  const cu::Result result = count().cuStreamWaitEvent(stream, event, 0);
  if (is_capture_error(result)) return false;
  driver_->check(result, "cuStreamWaitEvent");
  return true;
}

EventStatus Device::query(cu::Event event) const {
  const ContextScope scope(*driver_, context_.get());
  const cu::Result result = count().cuEventQuery(event);
  if (result == cu::Result::kNotReady) return EventStatus::kPending;
  if (result == cu::Result::kCapturedEvent) return EventStatus::kCaptured;
  driver_->check(result, "cuEventQuery");
  return EventStatus::kReached;
}

void Device::synchronize(cu::Event event) const {
  const ContextScope scope(*driver_, context_.get());
  driver_->check(count().cuEventSynchronize(event), "cuEventSynchronize");
}

// Callers keep track of captures on this device; on another one, its legacy stream shows them.
bool Device::has_captures(cu::Context context) const {
  if (context == context_.get()) return false;
  const ContextScope scope(*driver_, context);
  return is_capturing_here(cu::legacy_stream());
}

bool Device::synchronize(cu::Context context) const {
  if (has_captures(context)) return false;
  const ContextScope scope(*driver_, context);
  const cu::Result result = count().cuCtxSynchronize();
  if (is_capture_error(result)) return false;
  driver_->check(result, "cuCtxSynchronize");
  return true;
}

// A device without an active context has no pending work. That is checked each time, because a program can start a
// device at any moment.
std::vector<std::unique_ptr<const PrimaryContext>> Device::active_others() const {
  std::vector<std::unique_ptr<const PrimaryContext>> found;
  const int devices = driver_->device_count();
  for (int other = 0; other < devices; ++other) {
    unsigned flags = 0;
    int is_active = 0;
    if (other == number_) continue;
    driver_->check(driver_->functions().cuDevicePrimaryCtxGetState(other, &flags, &is_active),
                   "cuDevicePrimaryCtxGetState");
    if (is_active != 0) found.push_back(std::make_unique<const PrimaryContext>(*driver_, other));
  }
  return found;
}

bool Device::synchronize_others() const {
  const auto others = active_others();
  return std::all_of(others.begin(), others.end(), [&](const auto& other) { return synchronize(other->get()); });
}

// Not counted in calls(): this runs for every request on a stream that could be captured.
bool Device::is_capturing(cu::Stream stream) const {
  const ContextScope scope(*driver_, context_.get());
  return is_capturing_here(stream);
}

bool Device::is_capturing_here(cu::Stream stream) const {
  cu::CaptureStatus status = cu::CaptureStatus::kNone;
  const cu::Result result = driver_->functions().cuStreamIsCapturing(stream, &status);
  if (result == cu::Result::kCaptureImplicit) return true;
  driver_->check(result, "cuStreamIsCapturing");
  return status != cu::CaptureStatus::kNone;
}

std::optional<std::uint64_t> Device::capture_of(cu::Stream stream) const {
  static std::atomic<std::uint64_t> unknown{std::uint64_t{1} << 63};
  if (driver_->functions().cuStreamGetCaptureInfo == nullptr) {
    return is_capturing(stream) ? std::optional(++unknown) : std::nullopt;
  }
  cu::CaptureStatus status = cu::CaptureStatus::kNone;
  std::uint64_t id = 0;
  const auto query = [&] { return driver_->functions().cuStreamGetCaptureInfo(stream, &status, &id); };
  cu::Result result = cu::Result::kSuccess;
  if (stream == cu::per_thread_stream()) {
    const ContextScope scope(*driver_, context_.get());
    result = query();
  } else {
    result = ask_about_stream(query);
  }
  driver_->check(result, "cuStreamGetCaptureInfo");
  return status != cu::CaptureStatus::kNone ? std::optional(id) : std::nullopt;
}

RelaxedCapture::RelaxedCapture(const Device& device) : device_(device) {
  if (!device.can_relax() || exchange() == cu::Result::kSuccess) return;
  device.driver_->check(exchange(), "cuThreadExchangeStreamCaptureMode");  // better to fail than to break a capture
}

RelaxedCapture::~RelaxedCapture() {
  if (device_.can_relax() && exchange() != cu::Result::kSuccess) exchange();  // or the thread would stay relaxed
}

// In the current context: a null stream is that context's.
cu::Result Device::copy_to_peer(const Device& other, std::uint64_t to, std::uint64_t from, std::uint64_t size,
                                cu::Stream stream) const {
  const auto copy = count().cuMemcpyPeerAsync;
  if (copy == nullptr) return cu::Result::kNotSupported;
  return copy(to, other.context(), from, context(), size, stream);
}

void Device::copy_to_host(void* to, std::uint64_t from, std::uint64_t size) const {
  const ContextScope scope(*driver_, context_.get());
  driver_->check(count().cuMemcpyDtoH(to, from, size), "cuMemcpyDtoH");
}

void Device::copy_from_host(std::uint64_t to, const void* from, std::uint64_t size) const {
  const ContextScope scope(*driver_, context_.get());
  driver_->check(count().cuMemcpyHtoD(to, from, size), "cuMemcpyHtoD");
}

}  // namespace arena
