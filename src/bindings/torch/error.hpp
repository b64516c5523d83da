// PyTorch's own out-of-memory error, thrown without building against PyTorch.
#pragma once

#include <string>

namespace arena::torch {

// Throws c10::OutOfMemoryError, which reaches Python as torch.OutOfMemoryError; std::runtime_error if this PyTorch has no
// such class.
[[noreturn]] void throw_out_of_memory(const std::string& text);

}  // namespace arena::torch
