#include "taken.hpp"

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "blocks.hpp"
#include "doing.hpp"
#include "ledger.hpp"

namespace arena::ledger {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using allocator::TraceEntry;
using c10::ThreadLocalDebugInfo;

constexpr int kDevice = 0;                // the one that the verdict is about
constexpr std::int64_t kAlignment = 512;  // of the arena, in bytes

bool keeps_history = false;

// PyTorch calls this before it takes its lock.
std::shared_ptr<c10::GatheredContext> gather() {
  look();
  if (keeps_history) return torch::CapturedTraceback::gather(true, false, false);
  return nullptr;
}

// The allocator's trace has the size of a request. What a block takes it reports to the profiler of the thread only, right
// after that: so this is the profiler for so long.
class Reporter final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* address, std::int64_t size, std::size_t allocated, std::size_t reserved,
                         c10::Device device) override;
  bool memoryProfilingEnabled() const override { return false; }
};

struct Expected {
  std::shared_ptr<Reporter> reporter = std::make_shared<Reporter>();
  c10::DebugInfoBase* before = nullptr;  // the program's own profiler
  std::int64_t requested = 0;
  bool is_waiting = false;

  void begin(std::int64_t size) {
    const auto kind = c10::DebugInfoKind::PROFILER_STATE;
    if (is_waiting) ThreadLocalDebugInfo::_pop(kind);
    before = ThreadLocalDebugInfo::get(kind);
    requested = size;
    ThreadLocalDebugInfo::_push(kind, reporter);
    is_waiting = true;
  }
  void end() {
    ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
    is_waiting = false;
  }
};
Expected& expected() {
  thread_local Expected only;
  return only;
}

void Reporter::reportMemoryUsage(void* address, std::int64_t size, std::size_t allocated, std::size_t reserved,
                                 c10::Device device) {
  Expected& now = expected();
  if (!now.is_waiting) return;
  const std::int64_t requested = now.requested;
  now.end();
  if (now.before != nullptr) {
    static_cast<c10::MemoryReportingInfoBase*>(now.before)
        ->reportMemoryUsage(address, size, allocated, reserved, device);
  }
  if (size <= 0) return;
  add_block(reinterpret_cast<std::uint64_t>(address), size, doing_now(requested));
}

void trace(const TraceEntry& entry) {
  if (entry.device_ != kDevice) return;
  if (entry.action_ == TraceEntry::ALLOC) {
    expected().begin(static_cast<std::int64_t>(entry.size_));
  } else if (entry.action_ == TraceEntry::FREE_REQUESTED) {
    remove_block(static_cast<std::uint64_t>(entry.addr_));
  } else if (entry.action_ == TraceEntry::OOM) {
    note_failure();
  }
}

// The arguments of this function differ between versions of PyTorch.
template <typename Allocator>
void record_history(Allocator& of, std::size_t entries) {
  // `STATE` calls gather(), and keeps what it returns only as long as the block lives; `ALLOC` keeps it in the history.
  const auto when = keeps_history ? allocator::RecordContext::ALLOC : allocator::RecordContext::STATE;
  if constexpr (requires { of.recordHistory(true, gather, entries, when, false, std::vector<std::string>{}); }) {
    of.recordHistory(true, gather, entries, when, false, {});
  } else if constexpr (requires { of.recordHistory(true, gather, entries, when, false); }) {
    of.recordHistory(true, gather, entries, when, false);
  } else {
    of.recordHistory(true, gather, entries, when);
  }
}

Allocate allocate_block = nullptr;
Free free_block = nullptr;

}  // namespace

bool follow(std::size_t entries) {
  keeps_history = entries > 0;
  try {
    allocator::attachAllocatorTraceTracker(trace);
    record_history(*allocator::get(), std::max<std::size_t>(entries, 1));
  } catch (const std::exception&) {  // one that the program plugged in, or cudaMallocAsync
    return false;
  }
  return true;
}

void connect(Allocate allocate, Free release) {
  allocate_block = allocate;
  free_block = release;
}

void* allocate(std::size_t size, int device, void* stream) {
  if (device != kDevice) return allocate_block(size, device, stream);
  look();
  void* address = nullptr;
  try {
    address = allocate_block(size, device, stream);
  } catch (...) {
    note_failure();
    throw;
  }
  if (address == nullptr) return address;
  const auto requested = static_cast<std::int64_t>(size);
  const std::int64_t taken = (requested + kAlignment - 1) / kAlignment * kAlignment;
  add_block(reinterpret_cast<std::uint64_t>(address), taken, doing_now(requested));
  values::block_taken(reinterpret_cast<std::uint64_t>(address), size);
  return address;
}

void release(void* address, std::size_t size, int device, void* stream) {
  remove_block(reinterpret_cast<std::uint64_t>(address));
  values::block_freed(reinterpret_cast<std::uint64_t>(address));
  free_block(address, size, device, stream);
}

}  // namespace arena::ledger
