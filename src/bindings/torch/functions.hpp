// Memory for PyTorch: C functions that its CUDAPluggableAllocator calls, in any thread, with the GIL or without it. They
// serve hits like the quick path. A miss takes the GIL only if the arena has to call Python.
#pragma once

#include "bindings/bindings.hpp"
#include "bindings/slow_path.hpp"

namespace arena::torch {
void bind(pybind11::module_& module);

// From now on, which requests the on_pressure() functions of an arena watch.
void set_watched(const Arena& core, Watched watched);
}  // namespace arena::torch
