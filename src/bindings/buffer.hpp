// Blocks as arena.Buffer. Every function needs the GIL, and none may be called with the arena's lock held.
#pragma once

#include <memory>

#include "bindings/bindings.hpp"
#include "bindings/pool_state.hpp"

namespace arena::buffers {

// A block as an arena.Buffer, which owns it from now on. Null with an exception set if there is no host memory: the block is
// given back then.
PyObject* new_buffer(PoolRef state, Block& block, Bytes requested);

// The block of a live arena.Buffer, which is the caller's from now on: the buffer counts as freed.
Block& take_block(PyObject* buffer);

// Gives a block back and ignores errors: they mean that the driver is gone, and the memory with it.
void free_quietly(Arena& core, Block& block);

}  // namespace arena::buffers
