// What is known about PyTorch's operators by name: which are wrapped, which are computed although tensors are large, and how
// knowledge of single elements passes through them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>
#include <vector>

namespace arena::values {

enum class Passing {
  kWhole,      // one unknown element makes all results unknown
  kPointwise,  // an element of the result is known if the elements that it is made of are
  kMove,       // elements are copied: the same operation on flags says which are known
  kAnd,        // known if one side is known and false
  kOr,         // known if one side is known and true
  kProduct,    // known if one side is a known zero, for integers
  kSelect,     // where(condition, a, b)
  kMaskedFill,
  kAny,
  kAll,
  kFill,  // reads nothing that can be unknown
};

enum class Weight {
  kSmall,      // computed if everything together is small
  kSelective,  // comparisons, reductions, sorting: also on larger tensors if they are known
  kGather,     // as large as its result, however large the first tensor is
};

// Written tensors (`add_`, `out=`) and how results are returned.
struct Written {
  std::vector<std::size_t> arguments;
};

enum class Role {
  kComputed,
  kItem,     // _local_scalar_dense
  kCopy,     // copy_
  kNonzero,  // its number of results is the number of elements that are true
  kUnique,   // its number of results is only known on the device
  kCheck,    // GradScaler's: whether a gradient is not finite
  kMade,     // all that it reads are numbers: computed in place, after the operation of the device
};

struct Traits {
  std::string name;  // "aten::add.Tensor"
  Role role = Role::kComputed;
  Passing passing = Passing::kWhole;
  Weight weight = Weight::kSmall;
  bool is_random = false;
  bool has_cpu = false;
  bool chooses = false;  // elements of its first tensor
  bool is_foreign =
      false;  // of another library, in C++: it may launch kernels of its own between operations of PyTorch
  std::vector<bool> is_written;     // by argument
  std::vector<bool> is_out;         // by argument: written, and never read
  std::vector<int> return_aliases;  // by result: the written argument that it is, or -1
  std::vector<bool> is_running;     // by argument: statistics that a batch norm writes in training, and reads otherwise
  int training = -1;                // the argument that says which; -1: none
  int beta = -1;                    // the argument that `self` is multiplied by: with 0 it is not read; -1: none
};

Traits traits_of(const c10::OperatorHandle& op);

// Operators without a kernel of their own for the device that are wrapped nevertheless: what they call does not compute
// their result on the host.
const std::vector<c10::OperatorName>& more_operators();

// Whether an operator's kernel for the device should be wrapped.
bool is_wrapped(const c10::OperatorHandle& op);

}  // namespace arena::values
