// The kernel that PyTorch's dispatcher has for an operator and a backend.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace arena::values {

// What is in the table now: registered for the backend itself, or for several.
c10::KernelFunction kernel_of(const c10::OperatorHandle& op, c10::DispatchKey key);

// Calls the CPU's. The stack has the arguments, and then the results.
void call_cpu(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace arena::values
