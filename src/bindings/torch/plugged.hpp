// PyTorch's object for our functions, once it is in use: which of its own functions were replaced, and with what. PyTorch's
// allocator for other people's functions refuses many questions; the arena answers those that C++ asks. What Python asks about
// memory is answered in python/arena/_torch/.
#pragma once

#include <pybind11/pybind11.h>

namespace arena::torch {

void bind_plugged(pybind11::module_& module);

void reset_peaks_of(int device);

// Tells the observers that torch._C._cuda_attach_out_of_memory_observer() attached. Called without any lock.
void report_out_of_memory(int device, std::size_t size);

}  // namespace arena::torch
