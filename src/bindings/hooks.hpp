// CuPy's memory hooks, called from C: a hook that inspects the stack, as CuPy's line profiler does, finds the program and CuPy
// there, and no frame of arena. Every function needs the GIL, and none may be called with the arena's lock held.
#pragma once

#include <pybind11/pybind11.h>

namespace arena::cupy {

// Calls a method on each hook.
void call_hooks(const pybind11::object& hooks, const char* method, const pybind11::dict& facts);

// malloc() where Python is needed: with hooks, before CuPy is connected, and for errors. `pool` is an arena.Arena; null for the
// default arena of CuPy's current device. Returns null with an exception set.
PyObject* malloc_by_python(PyObject* pool, PyObject* size);

}  // namespace arena::cupy
