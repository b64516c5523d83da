// What python/arena/_torch/ needs to answer PyTorch's questions about memory.
#pragma once

#include <pybind11/pybind11.h>

namespace arena::torch {
void bind_questions(pybind11::module_& module);
}  // namespace arena::torch
