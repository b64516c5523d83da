// The parts of the extension module, one function each, called by module.cpp.
#pragma once

#include <pybind11/pybind11.h>

namespace arena {

void bind_errors();
void bind_driver(pybind11::module_& module);
void bind_arena(pybind11::module_& module);
void bind_allocator(pybind11::module_& module);

namespace cupy {
void bind(pybind11::module_& module);
}

}  // namespace arena
