// The memory that PyTorch has from arenas, for the functions beside those that allocate and free.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/torch/graphs.hpp"
#include "core/arena/arena.hpp"

namespace arena::torch {

// Without the GIL, whether or not the caller has it. For what waits for the device, or for another thread.
template <typename Function>
auto without_gil(const Function& function) {
  if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) return function();
  const WithoutGil released;
  return function();
}

GraphPools& graph_pools();

// The arena that a device's tensors come from; made if there is none yet, which may call Python.
std::shared_ptr<Arena> arena_for(int device);
// All arenas of a device that PyTorch took memory from so far.
std::vector<std::shared_ptr<Arena>> arenas_of(int device);
// A block that PyTorch has from now on. It frees the address.
void add_live(const Arena& core, Block& block);
void free_address(void* address);
// The lines that made the block at an address, as a number; 0 if there is no block.
Line line_at(void* address);
// The stream of this thread's request, for pools with an allocator of their own.
inline thread_local cu::Stream stream_of_request = nullptr;
// In a forked child PyTorch's memory is the parent's.
bool is_inherited();

}  // namespace arena::torch
