#include "host.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <mutex>
#include <set>
#include <utility>

#include "flags.hpp"
#include "kernels.hpp"
#include "memory.hpp"

namespace arena::values {
namespace {

// Nothing above the CPU's kernels: no autograd, no modes of the program, no autocast.
class OnHost {
  static c10::DispatchKeySet excluded() {
    using enum c10::DispatchKey;
    return c10::autograd_dispatch_keyset_with_ADInplaceOrView |
           c10::DispatchKeySet({Python, PythonTLSSnapshot, PythonDispatcher, PreDispatch, Functionalize, AutocastCPU,
                                AutocastCUDA, FuncTorchDynamicLayerFrontMode, FuncTorchDynamicLayerBackMode});
  }
  c10::impl::ExcludeDispatchKeyGuard guard_{excluded()};
};

// Kernels that refused a type once: an exception costs more than most of these operations.
class Refusals {
 public:
  bool contains(const Traits& traits, at::ScalarType type) {
    const std::lock_guard lock(mutex_);
    return known_.count({&traits, type}) > 0;
  }
  void add(const Traits& traits, at::ScalarType type) {
    const std::lock_guard lock(mutex_);
    known_.insert({&traits, type});
  }

 private:
  std::mutex mutex_;
  std::set<std::pair<const Traits*, at::ScalarType>> known_;
};
Refusals& refusals() {
  static auto& only = *new Refusals;
  return only;
}

at::ScalarType first_type(const Stack& arguments) {
  at::ScalarType found = at::ScalarType::Undefined;
  for (const IValue& one : arguments) {
    each_tensor(one, [&](const at::Tensor& tensor) {
      if (found == at::ScalarType::Undefined) found = tensor.scalar_type();
    });
  }
  return found;
}

// The same on the host. `fails` is set if it cannot be: a sparse tensor, or one of the host that would be written.
IValue on_host(const IValue& value, bool is_written, bool& fails) {
  const auto convert = [&](const at::Tensor& tensor) -> at::Tensor {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_cuda()) {
      fails = fails || is_written || !tensor.is_cpu();
      return tensor;
    }
    if (!is_plain(tensor)) {
      fails = true;
      return tensor;
    }
    settle(tensor);
    return is_written ? alias(tensor).clone() : alias(tensor);
  };
  if (value.isTensor()) return convert(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const IValue& one : value.toListRef()) made.push_back(convert(one.toTensor()));
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (const IValue& one : value.toListRef()) {
      made.push_back(one.isNone() ? std::nullopt : std::optional(convert(one.toTensor())));
    }
    return made;
  }
  if (value.isDevice() && value.toDevice().is_cuda()) return at::Device(at::kCPU);
  return value;
}

bool is_zero(const IValue& value) { return value.isScalar() && value.toScalar().equal(0); }

bool is_generator(const c10::Argument& argument) { return argument.type()->str().find("Generator") == 0; }

// Random numbers of a call: from a generator of our own, so that those of the program's CPU stay what they would be. Where
// an operator takes none, the CPU's own is lent, and gets its state back.
class Randomness {
 public:
  Randomness(const c10::OperatorHandle& op, Stack& arguments, std::uint64_t seed) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (!is_generator(op.schema().arguments()[i])) continue;
      arguments[i] = at::detail::createCPUGenerator(seed);
      return;
    }
    lent_ = at::detail::getDefaultCPUGenerator();
    lock_ = std::unique_lock(lent_.mutex());
    state_ = lent_.unsafeGetGeneratorImpl()->get_state();
    lent_.set_current_seed(seed);
    lock_.unlock();
  }
  ~Randomness() {
    if (!lent_.defined()) return;
    lock_.lock();
    lent_.unsafeGetGeneratorImpl()->set_state(*state_);
  }
  Randomness(const Randomness&) = delete;
  Randomness& operator=(const Randomness&) = delete;

 private:
  at::Generator lent_;
  std::unique_lock<std::mutex> lock_;
  c10::intrusive_ptr<c10::TensorImpl> state_;
};

bool call_host(const c10::OperatorHandle& op, const Traits& traits, Stack& stack, at::ScalarType type) {
  try {
    call_cpu(op, stack);
    return true;
  } catch (const c10::IndexError&) {  // these arguments only
  } catch (const c10::ValueError&) {
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    if (text.find("not implemented") != text.npos || text.find("not support") != text.npos ||
        text.find("Could not run") != text.npos) {
      refusals().add(traits, type);
    }
  }
  return false;
}

}  // namespace

Glance glance(const c10::OperatorHandle& op, const Stack& stack) {
  Glance seen;
  const std::size_t count = op.schema().arguments().size();
  for (const IValue& one : torch::jit::last(stack, count)) {
    each_tensor(one, [&](const at::Tensor& tensor) {
      if (!tensor.is_cuda()) return;
      ++seen.tensors;
      seen.is_plain = seen.is_plain && is_plain(tensor);
      const std::int64_t elements = seen.is_plain ? tensor.numel() : 0;
      seen.total += elements;
      seen.largest = std::max(seen.largest, elements);
      seen.is_integral = seen.is_integral && c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
      if (seen.device < 0) seen.device = tensor.device().index();
    });
  }
  return seen;
}

Knowledge knowledge_of(const Traits& traits, const Stack& stack, std::size_t arguments) {
  bool any = false, all = true;
  const auto values = torch::jit::last(stack, arguments);
  const bool is_self_read = traits.beta < 0 || !is_zero(values[traits.beta]);
  for (std::size_t i = is_self_read ? 0 : 1; i < arguments; ++i) {
    each_tensor(values[i], [&](const at::Tensor& tensor) {
      if (!is_plain(tensor) || traits.is_out[i]) return;
      const Knowledge one = knowledge(tensor);
      any = any || one != Knowledge::kNone;
      all = all && one == Knowledge::kAll;
    });
  }
  return all ? Knowledge::kAll : any ? Knowledge::kSome : Knowledge::kNone;
}

std::optional<HostResults> compute(const c10::OperatorHandle& op, const Traits& traits, const Stack& stack) {
  const std::size_t count = op.schema().arguments().size();
  if (!traits.has_cpu) return std::nullopt;
  const auto given = torch::jit::last(stack, count);
  Stack arguments;
  bool fails = false;
  for (std::size_t i = 0; i < count && !fails; ++i) arguments.push_back(on_host(given[i], traits.is_written[i], fails));
  if (fails) return std::nullopt;
  const at::ScalarType type = first_type(arguments);
  if (refusals().contains(traits, type)) return std::nullopt;
  const OnHost here;
  HostResults found;
  const Stack originals(given.begin(), given.end());
  find_known(op, traits, originals, found);
  std::optional<Randomness> randomness;
  if (traits.is_random) {
    randomness.emplace(op, arguments, seed_of(op, originals, glance(op, originals).device));
  }
  found.written.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (traits.is_written[i]) found.written[i] = arguments[i];
  }
  if (!call_host(op, traits, arguments, type)) return std::nullopt;
  found.results.assign(arguments.begin(), arguments.end());
  return found;
}

bool compute_in_place(const c10::OperatorHandle& op, const Traits& traits, const Stack& given, const at::Tensor& target,
                      std::uint64_t seed) {
  if (!traits.has_cpu) return false;
  Stack arguments;
  bool fails = false;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (traits.is_written[i]) {
      arguments.emplace_back(alias(target));
    } else {
      arguments.push_back(on_host(given[i], false, fails));
    }
  }
  const at::ScalarType type = target.scalar_type();
  if (fails || refusals().contains(traits, type)) return false;
  const OnHost here;
  std::optional<Randomness> randomness;
  if (traits.is_random) randomness.emplace(op, arguments, seed);
  return call_host(op, traits, arguments, type);
}

std::uint64_t seed_of(const c10::OperatorHandle& op, const Stack& stack, c10::DeviceIndex device) {
  at::Generator generator;
  const std::size_t count = op.schema().arguments().size();
  const auto arguments = torch::jit::last(stack, count);
  for (std::size_t i = 0; i < count; ++i) {
    if (is_generator(op.schema().arguments()[i]) && arguments[i].isGenerator()) generator = arguments[i].toGenerator();
  }
  if (!generator.defined()) {
    generator = at::globalContext().defaultGenerator(at::Device(at::kCUDA, std::max<c10::DeviceIndex>(device, 0)));
  }
  const std::lock_guard lock(generator.mutex());
  const std::uint64_t offset = generator.device().is_cuda() ? generator.get_offset() : 0;
  return generator.current_seed() * 0x9E3779B97F4A7C15u + offset;
}

}  // namespace arena::values
