#include "operators.hpp"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace arena::values {
namespace {

using namespace std::string_view_literals;

// By the name without overload. A name that is missing here is Passing::kWhole, or kPointwise if PyTorch says so.
const std::unordered_map<std::string_view, Passing>& passings() {
  using enum Passing;
  static const std::unordered_map<std::string_view, Passing> known{{"bitwise_and", kAnd},
                                                                   {"bitwise_and_", kAnd},
                                                                   {"logical_and", kAnd},
                                                                   {"logical_and_", kAnd},
                                                                   {"__and__", kAnd},
                                                                   {"__iand__", kAnd},
                                                                   {"bitwise_or", kOr},
                                                                   {"bitwise_or_", kOr},
                                                                   {"logical_or", kOr},
                                                                   {"logical_or_", kOr},
                                                                   {"__or__", kOr},
                                                                   {"__ior__", kOr},
                                                                   {"mul", kProduct},
                                                                   {"mul_", kProduct},
                                                                   {"where", kSelect},
                                                                   {"masked_fill", kMaskedFill},
                                                                   {"masked_fill_", kMaskedFill},
                                                                   {"any", kAny},
                                                                   {"all", kAll},
                                                                   {"cat", kMove},
                                                                   {"index_select", kMove},
                                                                   {"gather", kMove},
                                                                   {"take", kMove},
                                                                   {"index", kMove},
                                                                   {"flip", kMove},
                                                                   {"roll", kMove},
                                                                   {"tril", kMove},
                                                                   {"triu", kMove},
                                                                   {"tril_", kMove},
                                                                   {"triu_", kMove},
                                                                   {"constant_pad_nd", kMove},
                                                                   {"repeat", kMove},
                                                                   {"embedding", kMove},
                                                                   {"clone", kMove},
                                                                   {"copy_", kMove},
                                                                   {"unfold_backward", kMove},
                                                                   {"_index_put_impl_", kMove},
                                                                   {"index_copy", kMove},
                                                                   {"index_copy_", kMove},
                                                                   {"scatter", kMove},
                                                                   {"scatter_", kMove},
                                                                   {"fill_", kFill},
                                                                   {"zero_", kFill},
                                                                   {"index_fill_", kMove},
                                                                   {"masked_scatter_", kWhole},
                                                                   {"masked_select", kMove}};
  return known;
}

const std::unordered_set<std::string_view>& selective() {
  static const std::unordered_set<std::string_view> names{"eq",
                                                          "ne",
                                                          "lt",
                                                          "le",
                                                          "gt",
                                                          "ge",
                                                          "isnan",
                                                          "isinf",
                                                          "isfinite",
                                                          "isin",
                                                          "equal",
                                                          "sum",
                                                          "mean",
                                                          "prod",
                                                          "max",
                                                          "min",
                                                          "amax",
                                                          "amin",
                                                          "aminmax",
                                                          "argmax",
                                                          "argmin",
                                                          "any",
                                                          "all",
                                                          "norm",
                                                          "std",
                                                          "var",
                                                          "std_mean",
                                                          "var_mean",
                                                          "nansum",
                                                          "median",
                                                          "count_nonzero",
                                                          "linalg_vector_norm",
                                                          "sort",
                                                          "argsort",
                                                          "topk",
                                                          "kthvalue",
                                                          "bincount",
                                                          "histc",
                                                          "unique_dim",
                                                          "_unique2",
                                                          "_unique",
                                                          "unique_consecutive",
                                                          "cumsum",
                                                          "searchsorted",
                                                          "bucketize",
                                                          "nonzero",
                                                          "nonzero_static",
                                                          "_assert_async",
                                                          "bitwise_and",
                                                          "bitwise_or",
                                                          "bitwise_not",
                                                          "logical_and",
                                                          "logical_or",
                                                          "logical_not",
                                                          "masked_select",
                                                          "multinomial"};
  return names;
}

const std::unordered_set<std::string_view>& gathering() {
  static const std::unordered_set<std::string_view> names{"index_select", "gather", "take", "index", "embedding"};
  return names;
}

const std::unordered_set<std::string_view>& random() {
  static const std::unordered_set<std::string_view> names{
      "normal",           "normal_",         "uniform_",          "random_",  "bernoulli",
      "bernoulli_",       "exponential_",    "geometric_",        "cauchy_",  "log_normal_",
      "randperm",         "multinomial",     "poisson",           "binomial", "native_dropout",
      "rrelu_with_noise", "_standard_gamma", "_sample_dirichlet", "dropout",  "_fused_dropout"};
  return names;
}

// All that these read are numbers.
const std::unordered_set<std::string_view>& makers() {
  static const std::unordered_set<std::string_view> names{
      "fill_",       "zero_",  "normal_",  "uniform_", "random_", "exponential_", "geometric_", "cauchy_",
      "log_normal_", "arange", "linspace", "logspace", "range",   "randperm",     "eye",        "bernoulli_"};
  return names;
}

const std::unordered_set<std::string_view>& counting() {
  static const std::unordered_set<std::string_view> names{"_unique", "_unique2", "unique_dim", "unique_consecutive",
                                                          "unique_dim_consecutive"};
  return names;
}

// What gives out memory, looks at it under another shape, or moves no data.
const std::unordered_set<std::string_view>& without_values() {
  static const std::unordered_set<std::string_view> names{"empty",
                                                          "empty_strided",
                                                          "new_empty_strided",
                                                          "empty_like",
                                                          "record_stream",
                                                          "set_",
                                                          "resize_",
                                                          "view",
                                                          "as_strided",
                                                          "_reshape_alias",
                                                          "unfold",
                                                          "view_as_real",
                                                          "view_as_complex",
                                                          "_cudnn_init_dropout_state",
                                                          "is_set_to",
                                                          "_efficientzerotensor",
                                                          "is_pinned",
                                                          "_pin_memory",
                                                          "pin_memory",
                                                          "lift",
                                                          "lift_fresh",
                                                          "detach",
                                                          "alias",
                                                          "_debug_has_internal_overlap",
                                                          "_nested_view_from_buffer",
                                                          "_assert_async",
                                                          "_async_error",
                                                          "_resize_output_",
                                                          "resize_as_"};
  return names;
}

bool is_supported(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::StorageType:
    case c10::TypeKind::StreamObjType:
    case c10::TypeKind::QuantizerType:
    case c10::TypeKind::DictType:
      return false;
    default:
      return type.str().find("Dimname") == std::string::npos && type.str().find("Quantizer") == std::string::npos &&
             type.str().find("Storage") == std::string::npos && type.str().find("Stream") == std::string::npos;
  }
}

bool are_types_supported(const c10::FunctionSchema& schema) {
  const auto fine = [](const c10::Argument& one) { return is_supported(*one.type()); };
  return std::all_of(schema.arguments().begin(), schema.arguments().end(), fine) &&
         std::all_of(schema.returns().begin(), schema.returns().end(), fine);
}

bool is_view(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& one) {
    return one.alias_info() != nullptr && !one.alias_info()->isWrite();
  });
}

bool has_tensors(const c10::FunctionSchema& schema) {
  const auto is_tensor = [](const c10::Argument& one) { return one.type()->str().find("Tensor") != std::string::npos; };
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), is_tensor) ||
         std::any_of(schema.returns().begin(), schema.returns().end(), is_tensor);
}

// "aten::add_.Tensor" is "add_"; other namespaces keep theirs.
std::string_view plain_name(const c10::OperatorHandle& op) {
  const std::string_view name = op.operator_name().name;
  return name.substr(0, 6) == "aten::" ? name.substr(6) : name;
}

Role role_of(std::string_view name) {
  if (name == "_local_scalar_dense") return Role::kItem;
  if (name == "copy_") return Role::kCopy;
  if (name == "nonzero") return Role::kNonzero;
  if (name == "_amp_foreach_non_finite_check_and_unscale_") return Role::kCheck;
  if (counting().count(name) > 0) return Role::kUnique;
  return makers().count(name) > 0 ? Role::kMade : Role::kComputed;
}

// Written arguments that are not read, although they are not called `out`.
bool is_only_written(std::string_view name, std::string_view argument) {
  if (name == "_cummax_helper" || name == "_cummin_helper") return argument != "self";
  if (name == "rrelu_with_noise" || name == "rrelu_with_noise_") return argument == "noise";
  return name == "bernoulli_" && argument == "self";
}

// PyTorch's schemas do not say that batch norms write these.
void find_running(std::string_view name, const c10::FunctionSchema& schema, Traits& traits) {
  static const std::unordered_set<std::string_view> names{
      "native_batch_norm",       "_native_batch_norm_legit", "cudnn_batch_norm",
      "batch_norm_update_stats", "batch_norm_gather_stats",  "batch_norm_gather_stats_with_counts"};
  traits.is_running.resize(schema.arguments().size());
  if (names.count(name) == 0) return;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const std::string& argument = schema.arguments()[i].name();
    if (argument == "training") traits.training = static_cast<int>(i);
    if (argument == "running_mean" || argument == "running_var") traits.is_running[i] = traits.is_written[i] = true;
  }
}

int place_of(const c10::FunctionSchema& schema, std::string_view argument) {
  const auto& all = schema.arguments();
  const auto it = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name() == argument; });
  return it == all.end() || all[0].name() != "self" ? -1 : static_cast<int>(it - all.begin());
}

bool has_beta(std::string_view name) {
  static const std::unordered_set<std::string_view> names{
      "addmv", "addmv_", "addmm", "addmm_", "_addmm_activation", "addbmm", "addbmm_", "baddbmm", "baddbmm_"};
  return names.count(name) > 0;
}

void find_written(std::string_view name, const c10::FunctionSchema& schema, Traits& traits) {
  for (const c10::Argument& one : schema.arguments()) {
    traits.is_written.push_back(one.alias_info() != nullptr && one.alias_info()->isWrite());
    traits.is_out.push_back(one.is_out() || (traits.is_written.back() && is_only_written(name, one.name())));
  }
  find_running(name, schema, traits);
  if (has_beta(name)) traits.beta = place_of(schema, "beta");
  for (const c10::Argument& result : schema.returns()) {
    int found = -1;
    for (std::size_t i = 0; i < schema.arguments().size() && result.alias_info() != nullptr; ++i) {
      const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite() && alias->beforeSets() == result.alias_info()->beforeSets()) {
        found = static_cast<int>(i);
      }
    }
    traits.return_aliases.push_back(found);
  }
}

// A kernel that is a function of Python launches nothing but through operators.
bool is_foreign(const c10::OperatorHandle& op) {
  if (op.operator_name().name.rfind("aten::", 0) == 0) return false;
  const std::string state = op.dumpState();
  const std::size_t begin = state.find("\nCUDA: ");
  return begin == state.npos || state.substr(begin, state.find('\n', begin + 1) - begin).find(".py:") == state.npos;
}

}  // namespace

Traits traits_of(const c10::OperatorHandle& op) {
  Traits traits;
  const auto name = plain_name(op);
  traits.name = c10::toString(op.operator_name());
  traits.role = role_of(name);
  // bernoulli_.Tensor reads probabilities.
  if (traits.role == Role::kMade && op.operator_name().overload_name.find("Tensor") != std::string::npos) {
    traits.role = Role::kComputed;
  }
  if (const auto found = passings().find(name); found != passings().end()) {
    traits.passing = found->second;
  } else if (op.hasTag(at::Tag::pointwise)) {
    traits.passing = Passing::kPointwise;
  }
  if (selective().count(name) > 0) traits.weight = Weight::kSelective;
  if (gathering().count(name) > 0) traits.weight = Weight::kGather;
  traits.chooses = traits.weight == Weight::kGather || name == "masked_select";
  traits.is_random = random().count(name) > 0;
  traits.is_foreign = is_foreign(op);
  traits.has_cpu = op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  find_written(name, op.schema(), traits);
  if (traits.role == Role::kCopy) traits.is_out[0] = true;
  return traits;
}

const std::vector<c10::OperatorName>& more_operators() {
  static const std::vector<c10::OperatorName> names{
      {"aten::copy_", ""}, {"aten::convolution", ""}, {"aten::convolution_backward", ""}, {"aten::conj_physical_", ""}};
  return names;
}

bool is_wrapped(const c10::OperatorHandle& op) {
  if (!op.hasSchema()) return false;
  const c10::FunctionSchema& schema = op.schema();
  const std::string_view space = std::string_view(op.operator_name().name);
  // Of PyTorch's own namespaces only those with operations on data.
  for (const auto excluded : {"prim::"sv, "prims::"sv, "profiler::"sv, "c10d::"sv, "_c10d_functional"sv, "inductor::"sv,
                              "quantized::"sv, "rngprims::"sv, "debugprims::"sv, "higher_order"sv, "streams::"sv}) {
    if (space.substr(0, excluded.size()) == excluded) return false;
  }
  return are_types_supported(schema) && has_tensors(schema) && !is_view(schema) &&
         without_values().count(plain_name(op)) == 0;
}

}  // namespace arena::values
