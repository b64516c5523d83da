// The slow path of a request: everything that is more than a hit. It runs in C++ and calls Python only for what needs Python:
// functions for memory pressure, garbage collection and functions for out of memory, and to see whether other threads sleep.
//
// Every function needs the GIL, and none may be called with the arena's lock held.
#pragma once

#include <cstdint>
#include <memory>

#include "bindings/bindings.hpp"
#include "bindings/lines.hpp"
#include "core/arena/arena.hpp"

namespace arena {

// Which requests an arena's on_pressure() functions watch. allocate() counts kMisses as kAll.
enum class Watched : std::uint8_t { kNone, kMisses, kAll };

// Where memory comes from: the arena, and what the slow path has to know of it.
struct Source {
  std::shared_ptr<Arena> core;  // null before the arena is made and after it is closed
  int device = 0;
  bool is_simulated = false;
  Watched watched = Watched::kNone;
  bool is_auto_compact = false;         // compact="auto"
  bool expects_virtual_memory = false;  // warn if the platform refuses it
};

// Where an arena.Arena's memory comes from. Throws UsageError if it is closed, TypeError if it is no arena.
Source source_of(PyObject* pool);

// What the caller gets for a block.
enum class Product { kBuffer, kCupyPointer };

// The arguments of a request. The objects are borrowed.
struct Wanted {
  Bytes size = 0;
  cu::Stream stream = nullptr;
  PyObject* stream_object = nullptr;  // null for a number, and for a default stream
  PyObject* huge_size = nullptr;      // the exact size, if `size` cannot hold it
  lines::Framework framework = lines::Framework::kNone;
  bool any_stream = false;  // as in AllocateOptions
};

// Serves a request. `pool` is the arena.Arena; null: the one with the source's core, found if it is needed. Returns null with
// an exception set.
PyObject* allocate_slowly(const Source& source, PyObject* pool, const Wanted& wanted, Product product);

}  // namespace arena
