#include "doing.hpp"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "lines.hpp"
#include "modules.hpp"
#include "python.hpp"

namespace arena::ledger {
namespace {

using torch::autograd::Node;

constexpr std::size_t kMostRemembered = std::size_t{1} << 18;  // operations of a thread whose lines are known
constexpr std::uint64_t kLast = UINT64_MAX;                    // the sequence number of nodes that add up gradients

// Where the operations of forward passes were. Autograd numbers them in each thread; a node of the backward pass has the
// number of its operation.
struct Forward {
  std::uint64_t number;  // the next operation's when this one allocated: one more than its own
  std::uint32_t line, module;
};

class Operations {
 public:
  void add(const Forward& one) {
    if (!all_.empty() && all_.back().number >= one.number) return;  // the first that allocated is the operation itself
    if (all_.size() >= 2 * kMostRemembered) all_.erase(all_.begin(), all_.end() - kMostRemembered);
    all_.push_back(one);
  }
  // The operation itself or, if it allocated nothing, the last one before it.
  const Forward* find(std::uint64_t number) const {
    auto it = std::upper_bound(all_.begin(), all_.end(), number + 1,
                               [](std::uint64_t wanted, const Forward& one) { return wanted < one.number; });
    return it == all_.begin() ? nullptr : &*--it;
  }

 private:
  std::vector<Forward> all_;
};

// Never destroyed, as everything here.
struct Threads {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, Operations> operations;  // by thread
};
Threads& threads() {
  static Threads& only = *new Threads;
  return only;
}

std::atomic<std::uint64_t> operations_seen{0};

struct Thread {
  const std::uint64_t id = at::RecordFunction::currentThreadId();
  Doing doing;
  bool is_fresh = false;                    // `doing` is of the allocation that comes next
  std::array<std::int64_t, 4> gradients{};  // bytes of parameters that get their gradient from the current node
  std::uint64_t operation = 0, number = 0;
  std::uintptr_t instruction = 0;
  Forward backward{};  // of the last node that is an operation
};
thread_local Thread thread;

void remember(std::uint64_t number, const Doing& doing) {
  Threads& all = threads();
  const std::lock_guard lock(all.mutex);
  all.operations[thread.id].add({.number = number, .line = doing.line, .module = doing.module});
}

Forward operation_of(const Node& node) {
  Threads& all = threads();
  const std::lock_guard lock(all.mutex);
  const auto it = all.operations.find(node.thread_id());
  const Forward* const found = it == all.operations.end() ? nullptr : it->second.find(node.sequence_nr());
  return found == nullptr ? Forward{} : *found;
}

// A tensor that gets a gradient and was not computed is a parameter, whether or not it is one of a module.
void label_parameter(const at::Tensor& leaf) {
  if (!leaf.has_storage()) return;
  label_if_new(reinterpret_cast<std::uint64_t>(leaf.storage().data()), Kind::kParameters);
}

// The parameters without a gradient that get theirs from this node, at once or through views.
void find_gradients(const Node& node) {
  thread.gradients.fill(0);
  std::size_t found = 0;
  for (const auto& edge : node.next_edges()) {
    const Node* next = edge.function.get();
    for (int steps = 0; next != nullptr && next->sequence_nr() != kLast && steps < 3; ++steps) {
      next = next->num_outputs() == 1 ? next->next_edge(0).function.get() : nullptr;
    }
    const auto* const last = dynamic_cast<const torch::autograd::AccumulateGrad*>(next);
    if (last == nullptr || !last->variable.defined()) continue;
    label_parameter(last->variable);
    if (last->variable.grad().defined()) continue;
    if (found < thread.gradients.size()) thread.gradients[found++] = static_cast<std::int64_t>(last->variable.nbytes());
  }
}

void look_at_node(const Node& node, Doing& doing) {
  if (node.sequence_nr() == kLast) {
    thread.gradients.fill(0);
    const auto* const last = dynamic_cast<const torch::autograd::AccumulateGrad*>(&node);
    if (last != nullptr && last->variable.defined()) {
      thread.gradients[0] = static_cast<std::int64_t>(last->variable.nbytes());
    }
  } else {
    thread.backward = operation_of(node);
    find_gradients(node);
  }
  doing.line = thread.backward.line;
  doing.module = thread.backward.module;
}

void look_at_frames(Doing& doing, bool in_node, std::uintptr_t& instruction) {
  if (python::is_ending() || PyGILState_GetThisThreadState() == nullptr) return;
  const python::Locked locked;
  const Where found = where(in_node);
  doing.line = found.line;
  doing.is_step = found.is_step;
  doing.is_state = found.is_init;
  doing.is_recomputed = in_node && found.line != 0;
  instruction = found.instruction;
}

}  // namespace

void look() {
  Doing doing{.is_known = true};
  const int task = torch::autograd::get_current_graph_task_id();
  const auto node = task >= 0 ? torch::autograd::get_current_node() : decltype(torch::autograd::get_current_node()){};
  std::uintptr_t instruction = 0;
  look_at_frames(doing, node != nullptr, instruction);
  const std::uint64_t number = at::sequence_number::peek();
  if (task >= 0) note_backward(task);
  doing.is_backward = node != nullptr;
  if (node != nullptr && !doing.is_recomputed) {
    look_at_node(*node, doing);
    instruction = reinterpret_cast<std::uintptr_t>(node.get());
  } else {
    thread.gradients.fill(0);
    doing.module = current_module();
    const bool is_same = instruction == thread.instruction && number == thread.number;
    doing.has_graph = c10::GradMode::is_enabled() && (number > thread.number || (is_same && thread.doing.has_graph));
    if (number > 0) remember(number, doing);
  }
  if (instruction != thread.instruction || number != thread.number) {
    thread.operation = operations_seen.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  thread.instruction = instruction;
  thread.number = number;
  doing.operation = thread.operation;
  thread.doing = doing;
  thread.is_fresh = true;
}

Doing doing_now(std::int64_t requested) {
  if (!thread.is_fresh) return {};  // the program has PyTorch record its history, which took our place
  thread.is_fresh = false;
  Doing doing = thread.doing;
  doing.becomes_gradient =
      doing.is_backward && requested > 0 &&
      std::find(thread.gradients.begin(), thread.gradients.end(), requested) != thread.gradients.end();
  return doing;
}

std::uint64_t current_operation() { return thread.operation; }

}  // namespace arena::ledger
