#include "kernels.hpp"

namespace arena::values {
namespace {

// OperatorHandle gives no way to its entry, which alone knows its table. An explicit instantiation may name private members.
template <auto Member>
struct Access {
  friend auto& entry_of(const c10::OperatorHandle& op) { return (op.*Member)->op; }
};
auto& entry_of(const c10::OperatorHandle& op);
template struct Access<&c10::OperatorHandle::operatorDef_>;

}  // namespace

c10::KernelFunction kernel_of(const c10::OperatorHandle& op, c10::DispatchKey key) {
  return entry_of(op).lookup(c10::DispatchKeySet(key));
}

void call_cpu(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  constexpr auto kKey = c10::DispatchKey::CPU;
  entry_of(op).lookup(c10::DispatchKeySet(kKey)).callBoxed(op, c10::DispatchKeySet(kKey), &stack);
}

}  // namespace arena::values
