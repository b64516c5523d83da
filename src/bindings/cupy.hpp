// CuPy from C: its streams, devices and hooks, and memory in its own types. A CuPy with unexpected internals is no error: what is
// not found is treated as absent, and callers leave the request to Python.
//
// Every function needs the GIL, and none may be called with the arena's lock held.
#pragma once

#include <cstdint>
#include <memory>

#include "bindings/bindings.hpp"
#include "bindings/pool_state.hpp"

namespace arena::cupy {

// Whether CuPy is imported, and new_pointer() can make its types.
bool is_connected();
// Whether no memory hook is registered in this thread. False when CuPy cannot be asked.
bool is_unhooked();
// Whether CuPy has no CUDA runtime in this process: then device 0 and the null stream are current.
bool has_no_runtime();
// Whether memory of the simulated driver may be handed to CuPy: not to one that drives a real device.
bool may_simulate();
int current_device();  // -1 if it cannot be asked
// The stream that is current on a device. False if it cannot be asked.
bool find_current_stream(int device, cu::Stream& stream);
// The same as CuPy's object, which owns the stream. Throws what CuPy raises.
pybind11::object current_stream_object(int device);
// CuPy's own kind of arena.OutOfMemoryError; null before connect_cupy().
pybind11::handle error_type();

// A block as CuPy's MemoryPointer, which owns it from now on. Null with an error set when there is no host memory: the
// block is given back then.
PyObject* new_pointer(PoolRef&& state, Block& block);

}  // namespace arena::cupy
