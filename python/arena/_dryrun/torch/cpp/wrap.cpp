// The wrappers around PyTorch's kernels for the device. An operation runs as it would on a card, so that it allocates what it
// would there; then its result, which PyTorch's CPU kernel computed before, is written into its memory. What is not
// computed is marked as unknown.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "coalesce.hpp"
#include "distinct.hpp"
#include "expecting.hpp"
#include "host.hpp"
#include "kernels.hpp"
#include "ledger.hpp"
#include "memory.hpp"
#include "notes.hpp"
#include "wrap.hpp"

namespace arena::values {

std::atomic<Mode> mode{Mode::kControl};

namespace {

constexpr std::int64_t kSmall = std::int64_t{64} << 10;         // elements
constexpr std::int64_t kMostSelective = std::int64_t{4} << 20;  // of tensors that a comparison or reduction reads
constexpr std::int64_t kMostIntegers = std::int64_t{64} << 20;

bool is_affordable(const Traits& traits, const Glance& seen, const Stack& stack, std::size_t count) {
  if (!traits.has_cpu || !seen.is_plain) return false;
  if (mode.load(std::memory_order_relaxed) == Mode::kAll || seen.total <= kSmall) return true;
  const bool fits = (seen.is_integral && seen.total <= kMostIntegers) ||
                    (traits.weight == Weight::kSelective && seen.total <= kMostSelective) ||
                    (traits.weight == Weight::kGather && seen.total - seen.largest <= kSmall);
  return fits && knowledge_of(traits, stack, count) == Knowledge::kAll;
}

// While an operator of another library runs: between the operations of PyTorch that it calls, it launches kernels of its own,
// which write what no wrapper sees. So what these operations give is unknown; what the operator gives, its caller stores.
class Foreign {
 public:
  explicit Foreign(bool begins) : begins_(begins) { depth += begins_; }
  ~Foreign() { depth -= begins_; }
  Foreign(const Foreign&) = delete;
  Foreign& operator=(const Foreign&) = delete;
  static bool is_on() { return depth > 0; }

 private:
  bool begins_;
  static thread_local int depth;
};
thread_local int Foreign::depth = 0;

class Wrapped final : public c10::OperatorKernel {
 public:
  Wrapped(const c10::OperatorHandle& op, c10::KernelFunction original)
      : traits_(traits_of(op)), original_(std::move(original)), count_(op.schema().arguments().size()) {
    for (std::size_t i = 0; i < count_; ++i) {
      if (traits_.is_written[i]) written_.push_back(i);
    }
    for (std::size_t i = 0; i < traits_.return_aliases.size(); ++i) {
      if (traits_.return_aliases[i] < 0) made_.push_back(i);
    }
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) const {
    switch (traits_.role) {
      case Role::kItem:
        return item(op, keys, *stack);
      case Role::kCopy:
        return copy(op, keys, *stack);
      case Role::kNonzero:
        return nonzero(op, keys, *stack);
      case Role::kUnique:
        return unique(op, keys, *stack);
      case Role::kCheck:
        return check(op, keys, *stack);
      case Role::kMade:
        return Foreign::is_on() ? skipped(op, keys, *stack) : make(op, keys, *stack);
      default:
        return Foreign::is_on() ? skipped(op, keys, *stack) : computed(op, keys, *stack);
    }
  }

 private:
  using Op = c10::OperatorHandle;

  void call(const Op& op, c10::DispatchKeySet keys, Stack& stack) const {
    const Launching launching;
    const Foreign foreign(traits_.is_foreign);
    original_.callBoxed(op, keys, &stack);
  }

  Stack arguments(const Stack& stack) const {
    const auto values = torch::jit::last(stack, count_);
    return Stack(values.begin(), values.end());
  }

  // Outside of training a batch norm only reads its statistics.
  bool is_left(std::size_t argument, const Stack& before) const {
    return traits_.is_running[argument] && traits_.training >= 0 && !before[traits_.training].toBool();
  }

  void mark_unknown(const Stack& before, const Stack& stack) const {
    for (const std::size_t i : written_) {
      if (!is_left(i, before)) each_tensor(before[i], forget);
    }
    for (const std::size_t i : made_) each_tensor(torch::jit::peek(stack, i, traits_.return_aliases.size()), forget);
  }

  void follow(const Op& op, const Stack& before, const Stack& stack, const Inside& inside) const {
    for (std::size_t i = 0; inside.has_assumed() && i < made_.size(); ++i) {
      each_tensor(torch::jit::peek(stack, made_[i], traits_.return_aliases.size()),
                  [&](const at::Tensor& one) { inside.note(one); });
    }
    if (before.empty() || !has_sized()) return;
    const auto results = torch::jit::last(stack, traits_.return_aliases.size());
    note_following(op, before, Stack(results.begin(), results.end()));
  }

  void computed(const Op& op, c10::DispatchKeySet keys, Stack& stack) const {
    const Glance seen = glance(op, stack);
    if (seen.tensors == 0 || !is_affordable(traits_, seen, stack, count_) || !drain(seen.device)) {
      return skipped(op, keys, stack);
    }
    std::optional<HostResults> results = compute(op, traits_, stack);
    if (!results) return skipped(op, keys, stack);
    const Stack before = arguments(stack);
    const at::Tensor source = source_of(stack);
    const Inside inside;
    {
      std::optional<Quiet> quiet;
      if (results->is_known) quiet.emplace();
      const Hint hint(hint_of(op, *results));
      call(op, keys, stack);
    }
    store_all(before, stack, *results);
    chose(source, stack);
    follow(op, before, stack, inside);
  }

  // The integers that an operation chooses from, if that is what it does.
  at::Tensor source_of(const Stack& stack) const {
    if (!traits_.chooses) return {};
    const IValue& first = torch::jit::peek(stack, 0, count_);
    if (!first.isTensor() || !is_plain(first.toTensor())) return {};
    return c10::isIntegralType(first.toTensor().scalar_type(), true) ? first.toTensor() : at::Tensor();
  }

  static void chose(const at::Tensor& source, const Stack& stack) {
    if (source.defined() && stack.back().isTensor()) note_chosen(stack.back().toTensor(), source);
  }

  // Most operations on large tensors: the arguments are not kept longer than the operation keeps them, but for those that
  // it writes.
  void skipped(const Op& op, c10::DispatchKeySet keys, Stack& stack) const {
    Stack before;
    if (!written_.empty() || has_sized()) before = arguments(stack);
    const at::Tensor source = source_of(stack);
    const Inside inside;
    call(op, keys, stack);
    mark_unknown(before, stack);
    chose(source, stack);
    follow(op, before, stack, inside);
  }

  static void forget(const at::Tensor& tensor) {
    if (!is_plain(tensor)) return;
    forget_distinct(reinterpret_cast<std::uint64_t>(tensor.storage().data()));
    mark(tensor, State::kUnknown);
  }

  // For an operator whose result has another size than its arguments: the number of elements, for what it calls.
  struct Hint {
    explicit Hint(std::int64_t count) : before(current) { current = count; }
    ~Hint() { current = before; }
    Hint(const Hint&) = delete;
    Hint& operator=(const Hint&) = delete;
    std::int64_t before;
    static thread_local std::int64_t current;  // -1: none
  };

  static std::int64_t hint_of(const Op& op, const HostResults& results) {
    const bool may_count = op.operator_name().name.rfind("aten::", 0) != 0;
    if (may_count && results.is_known && results.results.size() == 1 && results.results[0].isTensor() &&
        results.results[0].toTensor().dim() > 0) {
      return results.results[0].toTensor().size(0);
    }
    return Hint::current;
  }

  void store_all(const Stack& before, Stack& stack, const HostResults& found) const {
    bool is_first = true;
    const auto put = [&](const IValue& target, const IValue& value) {
      std::vector<at::Tensor> values;
      each_tensor(value, [&](const at::Tensor& one) { values.push_back(one); });
      std::size_t next = 0;
      each_tensor(target, [&](const at::Tensor& one) {
        const at::Tensor given = next < values.size() ? values[next] : at::Tensor();
        ++next;
        if (is_plain(one)) put_tensor(one, given, found, is_first);
        is_first = false;
      });
    };
    for (std::size_t i = 0; i < count_; ++i) {
      if (traits_.is_written[i] && !is_left(i, before)) put(before[i], found.written[i]);
    }
    const std::size_t base = stack.size() - traits_.return_aliases.size();
    for (std::size_t i = 0; i < traits_.return_aliases.size(); ++i) {
      if (traits_.return_aliases[i] >= 0) continue;
      IValue& result = stack[base + i];
      if (result.isTensor() || result.isList()) {
        put(result, found.results[i]);
      } else if (found.is_known && result.tagKind() == found.results[i].tagKind()) {
        result = found.results[i];  // a bool of `equal`, say
      }
    }
  }

  static void put_tensor(const at::Tensor& target, const at::Tensor& value, const HostResults& found, bool is_first) {
    forget_distinct(reinterpret_cast<std::uint64_t>(target.storage().data()));
    if (found.is_known) return mark(target, store(target, value) ? State::kKnown : State::kUnknown);
    const at::Tensor kept = finite(value, is_first ? found.known : std::nullopt);
    if (!store(target, kept)) return mark(target, State::kUnknown);
    if (is_first && found.known) return mark_elements(target, *found.known);
    mark(target, State::kZero);
  }

  // Numbers only: the size is known when the operation is done.
  void make(const Op& op, c10::DispatchKeySet keys, Stack& stack) const {
    const Stack before = arguments(stack);
    const Glance seen = glance(op, stack);
    // In a capture nothing is computed, and a generator does not say where it is.
    const bool is_seeded = traits_.is_random && !is_captured(seen.device);
    const std::uint64_t seed = is_seeded ? seed_of(op, stack, seen.device) : 0;
    for (const std::size_t i : written_) each_tensor(before[i], forget);  // a memset makes it known
    call(op, keys, stack);
    for (std::size_t i = 0; i < count_; ++i) {
      if (!traits_.is_written[i] || !before[i].isTensor()) continue;
      const at::Tensor& target = before[i].toTensor();
      if (!is_plain(target) || knowledge(target) == Knowledge::kAll) continue;
      const bool is_integral = c10::isIntegralType(target.scalar_type(), true);
      const bool is_small = target.numel() <= (is_integral ? kMostIntegers : kSmall);
      const bool done = (is_small || mode == Mode::kAll) && drain(target.device().index()) &&
                        compute_in_place(op, traits_, before, target, seed);
      mark(target, done ? State::kKnown : State::kUnknown);
    }
    follow(op, before, stack, {});
  }

  void item(const Op& op, c10::DispatchKeySet keys, Stack& stack) const {
    const at::Tensor self = torch::jit::last(stack, 1)[0].toTensor();
    if (Expecting::current >= 0 || !is_plain(self) || knowledge(self) == Knowledge::kAll ||
        !drain(self.device().index())) {
      return call(op, keys, stack);
    }
    call_quietly(op, keys, stack);
    double assumed = 0;
    const char* const type = c10::toString(is_choice(self) ? at::kBool : self.scalar_type());
    const Answer answer = ask(type, static_cast<std::int64_t>(self.element_size()), assumed);
    if (answer == Answer::kAsComputed) return;
    IValue& result = stack.back();
    if (answer == Answer::kAnother && !result.isComplexDouble()) assumed = another(result.toScalar().toDouble());
    if (result.isBool()) result = assumed != 0;
    if (result.isInt()) result = static_cast<std::int64_t>(assumed);
    if (result.isDouble()) result = assumed;
  }

  void check(const Op& op, c10::DispatchKeySet keys, Stack& stack) const {
    note_choice(torch::jit::peek(stack, 1, count_).toTensor());
    return Foreign::is_on() ? skipped(op, keys, stack) : computed(op, keys, stack);
  }

  void call_quietly(const Op& op, c10::DispatchKeySet keys, Stack& stack) const {
    const Reading reading;
    call(op, keys, stack);
  }

  void copy(const Op& op, c10::DispatchKeySet keys, Stack& stack) const {
    const Stack before = arguments(stack);
    const at::Tensor &target = before[0].toTensor(), &source = before[1].toTensor();
    if (source.is_cuda() && target.is_cpu()) return copy_to_host(op, keys, stack, target, source);
    if (!is_plain(target)) return call(op, keys, stack);
    forget_distinct(reinterpret_cast<std::uint64_t>(target.storage().data()));
    if (source.is_cpu()) {
      call(op, keys, stack);
      ledger::label_if_new(reinterpret_cast<std::uint64_t>(target.storage().data()), ledger::Kind::kInputs);
      const bool as_it_is = target.is_conj() == source.is_conj() && target.is_neg() == source.is_neg();
      if ((as_it_is && knowledge(target) == Knowledge::kAll) || !drain(target.device().index())) return;
      alias(target).copy_(source);
      return mark(target, State::kKnown);
    }
    if (target.is_same(source)) return call(op, keys, stack);
    return copy_on_device(op, keys, stack, before);
  }

  // A copy of what is contiguous is one of the driver, which moves the marks, too. Anything else is a kernel.
  void copy_on_device(const Op& op, c10::DispatchKeySet keys, Stack& stack, const Stack& before) const {
    const at::Tensor &target = before[0].toTensor(), &source = before[1].toTensor();
    const bool by_driver = is_plain(source) && target.is_contiguous() && source.is_contiguous() &&
                           target.sizes() == source.sizes() && target.dtype() == source.dtype() &&
                           target.is_neg() == source.is_neg() && target.is_conj() == source.is_conj();
    if (!by_driver) {
      computed(op, keys, stack);
      return note_copy(target, source);
    }
    call(op, keys, stack);
    note_copy(target, source);
  }

  void copy_to_host(const Op& op, c10::DispatchKeySet keys, Stack& stack, const at::Tensor& target,
                    const at::Tensor& source) const {
    if (!is_plain(source) || source.numel() == 0 || !drain(source.device().index())) return call(op, keys, stack);
    const Knowledge known = knowledge(source);
    const bool all = known == Knowledge::kAll;
    const bool small = source.numel() <= kSmall;
    at::Tensor value, flags;
    if (all || small || mode == Mode::kAll) {
      settle(source);
      value = alias(source).clone();
      if (!all) flags = known_elements(source);
    }
    {
      const Quiet quiet;
      call_quietly(op, keys, stack);
    }
    drain(source.device().index());
    if (value.defined()) target.copy_(value.expand(target.sizes()));
    if (all) return;
    const std::int64_t unknown = flags.defined() ? source.numel() - flags.sum().item<std::int64_t>() : source.numel();
    double assumed = 0;
    const auto bytes = unknown * static_cast<std::int64_t>(source.element_size());
    const Answer answer = ask(c10::toString(source.scalar_type()), bytes, assumed);
    if (answer == Answer::kAsComputed) return;
    if (flags.defined()) {
      const at::Tensor chosen = flags.logical_not().expand(target.sizes());
      if (answer == Answer::kAssumed) target.masked_fill_(chosen, assumed);
      if (answer == Answer::kAnother) target.copy_(at::where(chosen, target.ne(1).to(target.dtype()), target));
    }
    if (!flags.defined() && known == Knowledge::kNone) target.fill_(assumed);
  }

  // `nonzero`: elements that are not known are assumed to be true, false, or every other one.
  void nonzero(const Op& op, c10::DispatchKeySet keys, Stack& stack) const {
    const Stack before = arguments(stack);
    const at::Tensor self = before[0].toTensor();
    if (!is_plain(self) || !drain(self.device().index())) {
      call(op, keys, stack);
      return mark_unknown(before, stack);
    }
    const Knowledge known = knowledge(self);
    const bool is_computed = known == Knowledge::kAll || self.numel() <= kSmall || mode == Mode::kAll;
    at::Tensor values, flags;
    std::int64_t count = 0, sure = 0, most = self.numel(), id = -1;
    if (is_computed) {
      settle(self);
      values = alias(self).ne(0);
      if (known != Knowledge::kAll) {
        flags = known_elements(self);
        sure = values.logical_and(flags).sum().item<std::int64_t>();
        most = sure + flags.numel() - flags.sum().item<std::int64_t>();
      } else {
        sure = most = values.sum().item<std::int64_t>();
      }
    }
    count = most;
    const bool is_assumed = most > sure;
    if (is_assumed) {
      count = Hint::current >= 0 ? Hint::current
              : Quiet::is_on()   ? most
                                 : sure + assumed_count(traits_.name.c_str(), most - sure, id);
      count = std::min(count, self.numel());
      if (values.defined()) values = with_count(values, flags, sure, count);
    }
    {
      const Expecting expecting(count);
      const Quiet quiet;
      call(op, keys, stack);
    }
    const at::Tensor result = torch::jit::last(stack, 1)[0].toTensor();
    if (!values.defined() || !store(result, values.nonzero())) {
      mark(result, State::kUnknown);
    } else {
      mark(result, is_assumed ? State::kZero : State::kKnown);
    }
    if (is_assumed && id >= 0) note_result(result, id, count, most);
    follow(op, before, stack, {});
  }

  // Elements that are not known become true until there are as many as assumed.
  static at::Tensor with_count(const at::Tensor& values, const at::Tensor& flags, std::int64_t sure,
                               std::int64_t count) {
    at::Tensor chosen = values.logical_and(flags).contiguous();
    auto* out = static_cast<bool*>(chosen.mutable_data_ptr());
    const at::Tensor known = flags.contiguous();
    const auto* is_known = static_cast<const bool*>(known.const_data_ptr());
    for (std::int64_t i = 0; i < chosen.numel() && sure < count; ++i) {
      if (is_known[i]) continue;
      out[i] = true;
      ++sure;
    }
    return chosen;
  }

  // The number of different values: what the CPU finds or, of values that are not known, what is assumed.
  void unique(const Op& op, c10::DispatchKeySet keys, Stack& stack) const {
    const Glance seen = glance(op, stack);
    const Stack before = arguments(stack);
    std::optional<HostResults> results;
    if (is_affordable(traits_, seen, stack, count_) && drain(seen.device)) results = compute(op, traits_, stack);
    const at::Tensor self = before[0].toTensor();
    const auto most = std::min(counted(op, before, self), distinct_at_most(self));
    std::int64_t count = most, id = -1;
    if (results && results->is_known) {
      count = counted(op, before, results->results[0].toTensor());
    } else if (most > 0 && !Quiet::is_on()) {
      count = std::max<std::int64_t>(1, assumed_count(traits_.name.c_str(), most, id));
    }
    {
      const Expecting expecting(count);
      const Quiet quiet;
      call(op, keys, stack);
    }
    if (results) {
      store_all(before, stack, *results);
    } else {
      mark_unknown(before, stack);
    }
    const auto first = torch::jit::last(stack, traits_.return_aliases.size())[0];
    if (id >= 0 && first.isTensor()) note_result(first.toTensor(), id, count, most);
    follow(op, before, stack, {});
  }

  // How many there are: elements, or slices of a dimension.
  static std::int64_t counted(const Op& op, const Stack& before, const at::Tensor& tensor) {
    const bool has_dimension =
        op.operator_name().name.find("_dim") != std::string::npos && before.size() > 1 && before[1].isInt();
    if (!has_dimension || tensor.dim() == 0) return tensor.numel();
    return tensor.size(before[1].toInt());
  }

  const Traits traits_;
  const c10::KernelFunction original_;
  const std::size_t count_;
  std::vector<std::size_t> written_;  // arguments
  std::vector<std::size_t> made_;     // results that are no argument
};

thread_local std::int64_t Wrapped::Hint::current = -1;

}  // namespace

thread_local int Reading::depth = 0;

namespace {

// PyTorch warns of the first kernel that is replaced, once in a process. Here that is on purpose.
struct NoWarning final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

int wrap_all() {
  NoWarning handler;
  const c10::WarningUtils::WarningHandlerGuard no_warning(&handler);
  static auto& registrations = *new std::deque<c10::RegistrationHandleRAII>;
  static auto& known = *new std::unordered_set<std::string>;  // a library may bring more kernels later
  int wrapped = 0;
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto wrap = [&](const c10::OperatorName& name, c10::DispatchKey key, const auto& make) {
    const auto op = dispatcher.findOp(name);
    if (!op || !is_wrapped(*op)) return;
    const c10::KernelFunction original = kernel_of(*op, key);
    if (original.isFallthrough() || !known.insert(c10::toString(name)).second) return;
    auto kernel = c10::KernelFunction::makeFromBoxedFunctor(make(*op, original));
    registrations.push_back(
        dispatcher.registerImpl(name, key, std::move(kernel), std::nullopt, nullptr, "arena: values in dry runs"));
    ++wrapped;
  };
  constexpr auto kDense = c10::DispatchKey::CUDA, kSparse = c10::DispatchKey::SparseCUDA;
  const auto dense = [](const auto& op, const auto& original) { return std::make_unique<Wrapped>(op, original); };
  for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(kDense)) wrap(name, kDense, dense);
  for (const c10::OperatorName& name : more_operators()) wrap(name, kDense, dense);
  wrap({"aten::_coalesce", ""}, kSparse,
       [](const auto&, const auto& original) { return std::make_unique<Coalescing>(original); });
  return wrapped;
}

}  // namespace arena::values
