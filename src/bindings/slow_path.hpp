// The slow path of a request: everything that is more than a hit. It runs in C++ and calls Python only for what needs Python:
// functions for memory pressure that are due, garbage collection and functions for out of memory, and to see whether other
// threads sleep.
//
// Every function needs the GIL, and none may be called with the arena's lock held.
#pragma once

#include <cstdint>
#include <memory>

#include "bindings/bindings.hpp"
#include "bindings/pool_state.hpp"
#include "core/arena/arena.hpp"

namespace arena {

// What the caller gets for a block.
enum class Product : std::uint8_t { kBuffer, kCupyPointer };

// A request as Python made it. The objects are borrowed.
struct PythonRequest {
  Request request = {};
  PyObject* stream_object = nullptr;  // null for a number, and for a default stream
  PyObject* huge_size = nullptr;      // the exact size, if the request cannot hold it
  Product product = Product::kBuffer;
};

// Serves a request. `pool` is the arena.Arena; null: the one with the state's core, found if it is needed. Returns null with
// an exception set.
PyObject* allocate_slowly(const std::shared_ptr<PoolState>& state, PyObject* pool, const PythonRequest& wanted);

// The same for a request that failed once: makes room, and tries again. Throws.
Block& allocate_after_failure(PoolState& state, const Request& request, const Failure& failure);

// Does what a request left to Python (PoolState::has_news). Throws what Python raises.
void report_news(PoolState& state);

}  // namespace arena
