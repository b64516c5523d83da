// Memory for PyTorch: C functions that its CUDAPluggableAllocator calls, in any thread, with the GIL or without it. Requests
// are served without the GIL; it is taken only for what Python has to do: to find an arena or look at a stream for the first
// time, to make room, and to call functions that are due.
#pragma once

#include "bindings/bindings.hpp"

namespace arena::torch {
void bind(pybind11::module_& module);
}  // namespace arena::torch
