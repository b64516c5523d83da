// Listens to PyTorch's allocator: a block that it gives out holds nothing that is known.
#pragma once

#include <cstddef>
#include <cstdint>

namespace arena::values {

// PyTorch's own. False if this one cannot be followed.
bool follow_allocator();

// For an allocator that is plugged in: PyTorch calls these two, which call its own.
using PluggedAllocate = void* (*)(std::size_t size, int device, void* stream);
using PluggedFree = void (*)(void* address, std::size_t size, int device, void* stream);
void connect_plugged(PluggedAllocate allocate, PluggedFree free);
void* allocate_plugged(std::size_t size, int device, void* stream);
void release_plugged(void* address, std::size_t size, int device, void* stream);

// For other allocators. Called with the allocator's lock held: nothing here may take Python's, or call PyTorch.
void block_taken(std::uint64_t address, std::uint64_t size);
void block_freed(std::uint64_t address);

}  // namespace arena::values
