// Blocks as arena.Buffer. Every function needs the GIL, and none may be called with the arena's lock held.
#pragma once

#include <memory>

#include "bindings/bindings.hpp"
#include "core/arena/arena.hpp"

namespace arena::buffers {

// A block as an arena.Buffer, which owns it from now on. Null with an error set when there is no host memory: the block
// is given back then.
PyObject* new_buffer(std::shared_ptr<Arena> core, Block& block, Bytes requested, int device);

// What a Buffer owned, and no longer owns; the block is null if it was freed before.
struct Disowned {
  std::shared_ptr<Arena> core;
  Block* block;
  Bytes requested;
  int device;
};
Disowned disown(pybind11::handle buffer);

// Gives a block back whatever happens. It can be only that the driver is gone, and the memory with it.
void free_quietly(Arena& core, Block& block);

}  // namespace arena::buffers
