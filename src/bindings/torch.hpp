// Memory for PyTorch: C functions that its CUDAPluggableAllocator calls, in any thread, with the GIL or without it. They
// serve hits like the quick path. A miss takes the GIL only if the arena has to call Python.
#pragma once

#include "bindings/bindings.hpp"

namespace arena::torch {
void bind(pybind11::module_& module);
}
