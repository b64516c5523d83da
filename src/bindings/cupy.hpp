// CuPy from C: what it says of its streams, devices and hooks, and memory in its own types. Nothing in here is an error
// because CuPy is another than expected: what is not found is not there, and callers go the way that Python goes.
//
// Every function needs the GIL, and none may be called with the arena's lock held.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "bindings/bindings.hpp"
#include "core/arena/arena.hpp"

namespace arena::cupy {

// Whether CuPy is imported and takes memory that new_pointer() makes.
bool is_connected();
// Whether no memory hook is registered in this thread. False when CuPy cannot be asked.
bool is_unhooked();
// Whether CuPy was found to have no CUDA runtime: then it has device 0 and the null stream, and need not be asked.
bool has_no_runtime();
// Whether memory of the simulated driver may be handed to CuPy: not to one that drives a real device.
bool may_simulate();
std::optional<int> current_device();
// The stream that is current on a device.
std::optional<cu::Stream> current_stream(int device);

// A block as CuPy's MemoryPointer, which owns it from now on. Null with an error set when there is no host memory: the
// block is given back then.
PyObject* new_pointer(std::shared_ptr<Arena> core, Block& block, Bytes requested, int device);

}  // namespace arena::cupy
