// CuPy's memory hooks, called from C: a hook that looks at the stack, as CuPy's line profiler does, finds the program and
// CuPy there, and no frame of arena. Every function needs the GIL, and none may be called with the arena's lock held.
#pragma once

#include <pybind11/pybind11.h>

namespace arena::cupy {

// Calls a method of each hook.
void call_hooks(const pybind11::object& hooks, const char* method, const pybind11::dict& facts);

// What malloc does when it is not a matter of taking what is there. `pool` is an arena.Arena; null is for the default
// one of CuPy's current device. Returns null with an error set.
PyObject* malloc_slowly(PyObject* pool, PyObject* size);

}  // namespace arena::cupy
