// Keeps the ledger of what PyTorch takes: from its own allocator, or from one that was given to it.
#pragma once

#include <cstddef>

namespace arena::ledger {

// Follows PyTorch's own allocator, once it is there. With `entries`, PyTorch's history goes on beside it, that long. False
// if this allocator cannot be followed.
bool follow(std::size_t entries);

using Allocate = void* (*)(std::size_t size, int device, void* stream);
using Free = void (*)(void* address, std::size_t size, int device, void* stream);

// What `allocate` and `release` call.
void connect(Allocate allocate, Free release);
void* allocate(std::size_t size, int device, void* stream);
void release(void* address, std::size_t size, int device, void* stream);

}  // namespace arena::ledger
