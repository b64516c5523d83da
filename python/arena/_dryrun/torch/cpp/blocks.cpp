#include "blocks.hpp"

#include <c10/cuda/CUDACachingAllocator.h>

#include "distinct.hpp"
#include "marks.hpp"
#include "notes.hpp"

namespace arena::values {

void block_taken(std::uint64_t address, std::uint64_t size) {
  if (marks.mark != nullptr) marks.mark(address, size, static_cast<int>(State::kUnknown));
}

void block_freed(std::uint64_t address) {
  forget_memory(address);
  forget_distinct(address);
}

bool follow_allocator() {
  using c10::cuda::CUDACachingAllocator::TraceEntry;
  try {
    c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const TraceEntry& entry) {
      const auto address = static_cast<std::uint64_t>(entry.addr_);
      if (entry.action_ == TraceEntry::ALLOC) {
        block_taken(address, entry.size_);
      } else if (entry.action_ == TraceEntry::FREE_REQUESTED) {
        block_freed(address);
      }
    });
  } catch (const std::exception&) {  // cudaMallocAsync, or an allocator that was plugged in
    return false;
  }
  return true;
}

}  // namespace arena::values
