// Sparse tensors: the number of different indices is only known on the device.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

#include <utility>

namespace arena::values {

// A kernel around that of `_coalesce`, so that the sum has as many elements as it would have on a card.
class Coalescing final : public c10::OperatorKernel {
 public:
  explicit Coalescing(c10::KernelFunction original) : original_(std::move(original)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const;

 private:
  const c10::KernelFunction original_;
};

}  // namespace arena::values
