#include "flags.hpp"

#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>

#include <array>
#include <string_view>

#include "kernels.hpp"
#include "memory.hpp"

namespace arena::values {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 20;  // with flags for each

// An operand: its values on the host, and which of them are known.
struct Operand {
  at::Tensor values, known;
};

Operand operand(const IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (is_plain(tensor)) return {alias(tensor), known_elements(tensor)};
    return {tensor, at::ones(tensor.sizes(), at::kBool)};
  }
  const at::Tensor number =
      value.isScalar() ? at::ones({}, at::kDouble).fill_(value.toScalar()) : at::ones({}, at::kDouble);
  return {number, at::ones({}, at::kBool)};
}

at::Tensor is_true(const at::Tensor& values) { return values.to(at::kBool); }

// What `out=` holds before is not read.
at::Tensor pointwise(const Traits& traits, const Stack& arguments) {
  at::Tensor known = at::ones({}, at::kBool);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const IValue& one = arguments[i];
    if (traits.is_out[i]) continue;
    if (one.isTensor() && one.toTensor().defined()) known = at::logical_and(known, operand(one).known);
  }
  return known;
}

// Known if both are, or if one is and decides: false for "and", true for "or".
at::Tensor absorbing(const Stack& arguments, bool decides) {
  const Operand a = operand(arguments[0]), b = operand(arguments[1]);
  const auto decided = [&](const Operand& one) {
    const at::Tensor truth = is_true(one.values);
    return at::logical_and(one.known, decides ? truth : at::logical_not(truth));
  };
  return at::logical_or(at::logical_and(a.known, b.known), at::logical_or(decided(a), decided(b)));
}

at::Tensor select(const Stack& arguments) {
  const Operand condition = operand(arguments[0]);
  if (arguments.size() < 3) return at::logical_and(condition.known, at::ones({}, at::kBool));
  return at::logical_and(
      condition.known, at::where(is_true(condition.values), operand(arguments[1]).known, operand(arguments[2]).known));
}

at::Tensor masked_fill(const Stack& arguments) {
  const Operand self = operand(arguments[0]), mask = operand(arguments[1]), value = operand(arguments[2]);
  return at::logical_and(mask.known, at::where(is_true(mask.values), value.known, self.known));
}

bool is_data(const c10::Argument& argument, std::size_t index) {
  static constexpr std::array<std::string_view, 5> kNames{"src", "source", "values", "value", "tensors"};
  return index == 0 || std::find(kNames.begin(), kNames.end(), argument.name()) != kNames.end();
}

// Runs the operation on flags. Nothing if it does more than move elements.
std::optional<at::Tensor> moved(const c10::OperatorHandle& op, const Traits& traits, const Stack& arguments) {
  Stack flags;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = op.schema().arguments()[i];
    const IValue& one = arguments[i];
    if (argument.name() == "accumulate" && one.isBool() && one.toBool()) return std::nullopt;
    if (argument.name() == "reduce" && !one.isNone()) return std::nullopt;
    if (argument.name() == "dtype") {
      flags.emplace_back();
    } else if (is_data(argument, i) && one.isTensor() && one.toTensor().defined()) {
      flags.emplace_back(operand(one).known);
    } else if (is_data(argument, i) && one.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const IValue& part : one.toListRef()) list.push_back(operand(part).known);
      flags.emplace_back(std::move(list));
    } else if (is_data(argument, i) && one.isScalar()) {
      flags.emplace_back(c10::Scalar(true));
    } else {
      bool known = true;
      each_tensor(one, [&](const at::Tensor& tensor) {
        known = known && (!is_plain(tensor) || knowledge(tensor) == Knowledge::kAll);
      });
      if (!known) return std::nullopt;
      if (one.isTensor() && one.toTensor().defined() && is_plain(one.toTensor())) {
        flags.emplace_back(traits.is_written[i] ? at::ones({0}, at::kBool) : alias(one.toTensor()));
      } else if (one.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const IValue& part : one.toListRef()) {
          const bool is_there = part.isTensor() && part.toTensor().defined();
          list.push_back(!is_there
                             ? std::nullopt
                             : std::optional(is_plain(part.toTensor()) ? alias(part.toTensor()) : part.toTensor()));
        }
        flags.emplace_back(std::move(list));
      } else {
        flags.push_back(one);
      }
    }
  }
  call_cpu(op, flags);
  return flags.empty() || !flags[0].isTensor() ? std::nullopt : std::optional(flags[0].toTensor());
}

bool are_bools(const Stack& arguments) {
  return std::all_of(arguments.begin(), arguments.begin() + 2, [](const IValue& one) {
    return one.isTensor() ? one.toTensor().scalar_type() == at::kBool : one.isScalar() && one.toScalar().isBoolean();
  });
}

// any() is known if a known element is true; all() if one is false.
bool is_decided(const Stack& arguments, bool decides) {
  const Operand self = operand(arguments[0]);
  const at::Tensor truth = is_true(self.values);
  return at::logical_and(self.known, decides ? truth : at::logical_not(truth)).any().item<bool>();
}

std::optional<at::Tensor> flags_of(const c10::OperatorHandle& op, const Traits& traits, const Stack& arguments) {
  switch (traits.passing) {
    case Passing::kPointwise:
      return pointwise(traits, arguments);
    case Passing::kAnd:
      return absorbing(arguments, false);
    case Passing::kOr:  // of integers, a known one decides only its own bits
      return traits.name.find("logical_or") != traits.name.npos || are_bools(arguments) ? absorbing(arguments, true)
                                                                                        : pointwise(traits, arguments);
    case Passing::kProduct: {
      const bool integral = arguments[0].isTensor() && !arguments[0].toTensor().is_floating_point() &&
                            !(arguments[1].isTensor() && arguments[1].toTensor().is_floating_point());
      return integral ? absorbing(arguments, false) : pointwise(traits, arguments);
    }
    case Passing::kSelect:
      return select(arguments);
    case Passing::kMaskedFill:
      return masked_fill(arguments);
    case Passing::kMove:
      return moved(op, traits, arguments);
    default:
      return std::nullopt;
  }
}

}  // namespace

void find_known(const c10::OperatorHandle& op, const Traits& traits, const Stack& arguments, HostResults& results) {
  if (traits.passing == Passing::kFill || knowledge_of(traits, arguments, arguments.size()) == Knowledge::kAll) {
    results.is_known = true;
    return;
  }
  if (traits.passing == Passing::kWhole || glance(op, arguments).total > kMostElements) return;
  try {
    if (traits.passing == Passing::kAny || traits.passing == Passing::kAll) {
      // Over all elements only: any.dim and the like would need a flag for each row.
      results.is_known = op.schema().arguments().size() == 1 && is_decided(arguments, traits.passing == Passing::kAny);
      return;
    }
    results.known = flags_of(op, traits, arguments);
  } catch (const std::exception&) {  // the flags have a shape that the operation does not take: then nothing is known
  }
}

}  // namespace arena::values
