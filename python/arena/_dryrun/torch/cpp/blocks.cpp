#include "blocks.hpp"

#include <c10/cuda/CUDACachingAllocator.h>

#include "marks.hpp"
#include "notes.hpp"

namespace arena::values {

// Called with the allocator's lock held: nothing here may take Python's, or call PyTorch.
void follow_allocator() {
  using c10::cuda::CUDACachingAllocator::TraceEntry;
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const TraceEntry& entry) {
    const auto address = static_cast<unsigned long long>(entry.addr_);
    if (entry.action_ == TraceEntry::ALLOC) {
      marks.mark(address, entry.size_, static_cast<int>(State::kUnknown));
    } else if (entry.action_ == TraceEntry::FREE_REQUESTED) {
      forget_memory(address);
    }
  });
}

}  // namespace arena::values
