// PyTorch's own out-of-memory error, thrown without building against PyTorch.
#pragma once

#include <cstdint>
#include <string>

namespace arena::torch {

// Throws c10::OutOfMemoryError, which reaches Python as torch.OutOfMemoryError; std::runtime_error with the same text if this
// PyTorch is built in a way that is not known here. The text begins as PyTorch's own does, because programs search it for
// those words.
[[noreturn]] void throw_out_of_memory(std::uint64_t requested, const std::string& why);

}  // namespace arena::torch
