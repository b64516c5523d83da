#include "blocks.hpp"

#include <c10/cuda/CUDACachingAllocator.h>

#include "distinct.hpp"
#include "marks.hpp"
#include "notes.hpp"

namespace arena::values {
namespace {

PluggedAllocate plugged_allocate = nullptr;
PluggedFree plugged_free = nullptr;

}  // namespace

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

void connect_plugged(PluggedAllocate allocate, PluggedFree free) {
  plugged_allocate = allocate;
  plugged_free = free;
}

void* allocate_plugged(std::size_t size, int device, void* stream) {
  void* address = plugged_allocate(size, device, stream);
  if (address != nullptr) block_taken(reinterpret_cast<std::uint64_t>(address), size);
  return address;
}

void release_plugged(void* address, std::size_t size, int device, void* stream) {
  block_freed(reinterpret_cast<std::uint64_t>(address));
  plugged_free(address, size, device, stream);
}

}  // namespace arena::values
