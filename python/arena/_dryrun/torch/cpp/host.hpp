// Runs PyTorch's CPU kernel on the memory of the simulated device.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <vector>

#include "operators.hpp"

namespace arena::values {

using c10::IValue;
using torch::jit::Stack;

// What a call does with tensors of the device, at a glance.
struct Glance {
  std::int64_t total = 0;    // elements of all tensors of the device
  std::int64_t largest = 0;  // of one
  bool is_integral = true;   // all of them
  bool is_plain = true;      // all of them
  int tensors = 0;
  c10::DeviceIndex device = -1;
};
Glance glance(const c10::OperatorHandle& op, const Stack& stack);

// What is known of the tensors that a call reads.
Knowledge knowledge_of(const Traits& traits, const Stack& stack, std::size_t arguments);

// What a call gives on the host.
struct HostResults {
  std::vector<IValue> results;      // by result of the operator
  std::vector<IValue> written;      // by argument; none where it is not written
  std::optional<at::Tensor> known;  // elements of the first result that are known, if that differs between them
  bool is_known = false;            // all of them
};

// Calls the CPU kernel with the arguments on top of the stack, which stay there. Tensors that it writes are copies.
// None if there is no such kernel, or it refuses these arguments.
std::optional<HostResults> compute(const c10::OperatorHandle& op, const Traits& traits, const Stack& stack);

// The same for operators that read only numbers: writes right into memory of the device.
bool compute_in_place(const c10::OperatorHandle& op, const Traits& traits, const Stack& arguments,
                      const at::Tensor& target, std::uint64_t seed);

// What random numbers follow from: the seed and the position of the device's generator. To be asked before the call.
std::uint64_t seed_of(const c10::OperatorHandle& op, const Stack& stack, c10::DeviceIndex device);

// Calls `visit(tensor, argument)` for each defined tensor among the arguments.
template <typename Visit>
void each_tensor(const IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    const auto items = value.toListRef();
    if (items.empty() || !(items[0].isTensor() || items[0].isNone())) return;
    for (const IValue& one : items) {
      if (one.isTensor() && one.toTensor().defined()) visit(one.toTensor());
    }
  }
}

}  // namespace arena::values
