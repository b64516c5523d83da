// The state of a pool: what was live in it at one moment, to be live again. Cudagraph trees record several graphs in one pool, and
// restore the state that it had after the graph that is recorded next follows.
#pragma once

#include "bindings/torch/table.hpp"

namespace arena::torch {

// The functions for PyTorch's table. `function_of_pytorch` is any in the library that the table is from.
Group checkpoint_functions(const void* function_of_pytorch);

}  // namespace arena::torch
