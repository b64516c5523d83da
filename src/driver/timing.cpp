#include "driver/timing.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

namespace arena {
namespace {

constexpr std::uint64_t kReservedAddresses = std::uint64_t{1} << 30;  // as large as an arena's reservations
constexpr int kCalibrationOperations = 8;
// A driver's queue holds about a thousand operations; when it is full, the next call waits.
constexpr double kFewestOperations = 4, kMostOperations = 600;

double microseconds_now() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Undoes a step at the end of the scope, unless a timed call already did. Tries twice, or the resource would leak.
template <typename Undo>
class UndoOnExit {
 public:
  explicit UndoOnExit(Undo undo) : undo_(std::move(undo)) {}
  ~UndoOnExit() {
    if (armed_ && undo_() != cu::Result::kSuccess) undo_();
  }
  UndoOnExit(const UndoOnExit&) = delete;
  UndoOnExit& operator=(const UndoOnExit&) = delete;
  void dismiss() { armed_ = false; }

 private:
  Undo undo_;
  bool armed_ = true;
};

}  // namespace

// A stream with queued work of a known length, topped up before half of it can be done. Its functions need the context
// to be current.
class CallTimer::Load {
 public:
  Load(const Driver& driver, std::uint64_t bytes, double milliseconds) : driver_(driver), bytes_(bytes) {
    try {
      driver_.check(call().cuMemAlloc(&memory_, bytes), "cuMemAlloc");
      driver_.check(call().cuStreamCreate(&stream_, cu::bits(cu::StreamFlag::kNonBlocking)), "cuStreamCreate");
      driver_.check(call().cuEventCreate(&end_, cu::bits(cu::EventFlag::kDisableTiming)), "cuEventCreate");
      calibrate(milliseconds * 1000);
    } catch (...) {
      give_back();
      throw;
    }
  }
  ~Load() { give_back(); }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  // Queues more work if little is left. Returns whether any is queued.
  bool keep_busy() {
    if (microseconds_now() - queued_at_ > length_ / 2 || is_done()) queue();
    return !is_done();
  }

  // Does not throw: it runs after a timed call whose result must not be lost.
  bool seems_done() const { return call().cuEventQuery(end_) == cu::Result::kSuccess; }

  bool is_done() const {
    const cu::Result result = call().cuEventQuery(end_);
    if (result == cu::Result::kNotReady) return false;
    driver_.check(result, "cuEventQuery");
    return true;
  }

 private:
  const Functions& call() const { return driver_.functions(); }

  void calibrate(double wanted) {
    work(1);  // warm up
    driver_.check(call().cuStreamSynchronize(stream_), "cuStreamSynchronize");
    const double begin = microseconds_now();
    work(kCalibrationOperations);
    driver_.check(call().cuStreamSynchronize(stream_), "cuStreamSynchronize");
    const double each = std::max(0.1, (microseconds_now() - begin) / kCalibrationOperations);
    operations_ = static_cast<int>(std::clamp(wanted / each, kFewestOperations, kMostOperations));
    length_ = each * operations_;
  }

  void work(int operations) {
    for (int i = 0; i < operations; ++i) {
      driver_.check(call().cuMemsetD8Async(memory_, 0, bytes_, stream_), "cuMemsetD8Async");
    }
  }

  void queue() {
    work(operations_);
    driver_.check(call().cuEventRecord(end_, stream_), "cuEventRecord");
    queued_at_ = microseconds_now();
  }

  void give_back() noexcept {
    const auto try_twice = [](const auto& function) {
      if (function() != cu::Result::kSuccess) function();
    };
    if (stream_ != nullptr) try_twice([&] { return call().cuStreamSynchronize(stream_); });
    if (end_ != nullptr) try_twice([&] { return call().cuEventDestroy(end_); });
    if (stream_ != nullptr) try_twice([&] { return call().cuStreamDestroy(stream_); });
    if (memory_ != 0) try_twice([&] { return call().cuMemFree(memory_); });
  }

  const Driver& driver_;
  std::uint64_t bytes_;
  cu::DevicePtr memory_ = 0;
  cu::Stream stream_ = nullptr;
  cu::Event end_ = nullptr;  // recorded after all queued work
  int operations_ = 0;
  double length_ = 0, queued_at_ = 0;  // microseconds
};

CallTimer::CallTimer(std::shared_ptr<const Driver> driver, int device)
    : driver_(std::move(driver)), device_(device), context_(std::in_place, *driver_, device) {
  std::array<double, 101> empty{};
  for (double& each : empty) {
    const double begin = now();
    each = now() - begin;
  }
  std::nth_element(empty.begin(), empty.begin() + empty.size() / 2, empty.end());
  overhead_ = empty[empty.size() / 2];
}

CallTimer::~CallTimer() {
  ignore_errors([&] { close(); });
}

cu::Context CallTimer::context() const {
  if (!context_) throw UsageError("this CallTimer is closed; create another one");
  return context_->get();
}

double CallTimer::now() const { return has_virtual_clock() ? driver_->virtual_clock()() : microseconds_now(); }

template <typename Call>
CallTime CallTimer::time(const char* name, std::uint64_t size, const Call& call) {
  const bool loaded = load_ && load_->keep_busy();
  const double real_begin = microseconds_now(), begin = now();
  const cu::Result result = call();
  const double end = now();
  const double waiting = has_virtual_clock() ? microseconds_now() - real_begin : 0;
  driver_->check(result, name);
  const bool waited = loaded && load_->seems_done();
  return {.call = name,
          .size = size,
          .microseconds = std::max(0.0, end - begin - overhead_) + (waited ? waiting : 0),
          .loaded = loaded,
          .waited = waited};
}

std::vector<CallTime> CallTimer::virtual_round(std::uint64_t size) {
  const ContextScope scope(*driver_, context());
  const Functions& f = driver_->functions();
  cu::MemAllocationProp prop{};
  prop.type = cu::MemAllocationType::kPinned;
  prop.location = {cu::MemLocationType::kDevice, device_};
  const cu::MemAccessDesc access{prop.location, cu::MemAccess::kReadWrite};
  const std::uint64_t addresses = std::max(size, kReservedAddresses);
  cu::DevicePtr address = 0;
  cu::MemHandle handle = 0;
  std::vector<CallTime> times;
  const auto add = [&](const char* name, std::uint64_t about, const auto& call) {
    times.push_back(time(name, about, call));
  };

  const auto free_addresses = [&] { return f.cuMemAddressFree(address, addresses); };
  const auto release = [&] { return f.cuMemRelease(handle); };
  const auto unmap = [&] { return f.cuMemUnmap(address, size); };
  add("cuMemAddressReserve", 0, [&] { return f.cuMemAddressReserve(&address, addresses, 0, 0, 0); });
  UndoOnExit reserved(free_addresses);
  add("cuMemCreate", size, [&] { return f.cuMemCreate(&handle, size, &prop, 0); });
  UndoOnExit created(release);
  add("cuMemMap", size, [&] { return f.cuMemMap(address, size, 0, handle, 0); });
  UndoOnExit mapped(unmap);
  add("cuMemSetAccess", size, [&] { return f.cuMemSetAccess(address, size, &access, 1); });
  add("cuMemUnmap", size, unmap);
  mapped.dismiss();
  add("cuMemRelease", size, release);
  created.dismiss();
  add("cuMemAddressFree", 0, free_addresses);
  reserved.dismiss();
  return times;
}

std::vector<CallTime> CallTimer::plain_round(std::uint64_t size) {
  const ContextScope scope(*driver_, context());
  const Functions& f = driver_->functions();
  cu::DevicePtr address = 0;
  const auto free = [&] { return f.cuMemFree(address); };
  std::vector<CallTime> times{time("cuMemAlloc", size, [&] { return f.cuMemAlloc(&address, size); })};
  UndoOnExit allocated(free);
  times.push_back(time("cuMemFree", size, free));
  allocated.dismiss();
  return times;
}

std::vector<CallTime> CallTimer::other_round() {
  const ContextScope scope(*driver_, context());
  const Functions& f = driver_->functions();
  std::size_t free = 0, total = 0;
  std::vector<CallTime> times{time("cuMemGetInfo", 0, [&] { return f.cuMemGetInfo(&free, &total); })};
  cu::Stream stream = nullptr;
  driver_->check(f.cuStreamCreate(&stream, cu::bits(cu::StreamFlag::kNonBlocking)), "cuStreamCreate");
  const UndoOnExit with_stream([&] { return f.cuStreamDestroy(stream); });
  cu::Event event = nullptr;
  driver_->check(f.cuEventCreate(&event, cu::bits(cu::EventFlag::kDisableTiming)), "cuEventCreate");
  const UndoOnExit with_event([&] { return f.cuEventDestroy(event); });
  times.push_back(time("cuEventRecord", 0, [&] { return f.cuEventRecord(event, stream); }));
  driver_->check(f.cuEventSynchronize(event), "cuEventSynchronize");
  times.push_back(time("cuEventQuery", 0, [&] { return f.cuEventQuery(event); }));
  return times;
}

void CallTimer::begin_load(std::uint64_t bytes, double milliseconds) {
  end_load();
  const ContextScope scope(*driver_, context());
  load_ = std::make_unique<Load>(*driver_, bytes, milliseconds);
}

void CallTimer::end_load() {
  if (!load_) return;
  const ContextScope scope(*driver_, context());
  load_.reset();
}

void CallTimer::close() {
  end_load();
  context_.reset();
}

}  // namespace arena
