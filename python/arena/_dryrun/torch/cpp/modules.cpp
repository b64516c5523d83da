#include "modules.hpp"

#include <mutex>
#include <unordered_map>
#include <vector>

#include "python.hpp"

namespace arena::ledger {
namespace {

constexpr int kVariableArguments = 0x0001 | 0x0002;  // METH_VARARGS | METH_KEYWORDS

struct Modules {
  std::mutex mutex;
  std::unordered_map<const void*, int> numbers;
  ArenaPyObject* original = nullptr;
  NameModule name = nullptr;
};
Modules& modules() {
  static Modules& only = *new Modules;
  return only;
}

thread_local std::uint32_t current = 0;

class Entered {
 public:
  explicit Entered(int number) : before_(current) { current = static_cast<std::uint32_t>(number); }
  ~Entered() { current = before_; }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  const std::uint32_t before_;
};

int number_of(ArenaPyObject* module) {
  Modules& known = modules();
  const bool is_outermost = current == 0;
  if (!is_outermost) {
    const std::lock_guard lock(known.mutex);
    const auto it = known.numbers.find(module);
    if (it != known.numbers.end()) return it->second;
  }
  return known.name(module, static_cast<int>(current));  // outside of all others: Python looks at its parameters, too
}

ArenaPyObject* call(ArenaPyObject*, ArenaPyObject* arguments, ArenaPyObject* named) {
  Modules& known = modules();
  if (PyTuple_Size(arguments) == 0) return PyObject_Call(known.original, arguments, named);  // it raises its own error
  const Entered entered(number_of(PyTuple_GetItem(arguments, 0)));
  return PyObject_Call(known.original, arguments, named);
}

}  // namespace

ArenaPyObject* watched_call(ArenaPyObject* original, NameModule name) {
  Modules& known = modules();
  Py_IncRef(original);
  known.original = original;
  known.name = name;
  static ArenaPyMethod method{.name = "__call__", .function = call, .flags = kVariableArguments, .doc = nullptr};
  const python::Owned function(PyCFunction_NewEx(&method, nullptr, nullptr));
  return function ? PyInstanceMethod_New(function.get()) : nullptr;
}

void number_module(const void* module, int number) {
  Modules& known = modules();
  const std::lock_guard lock(known.mutex);
  known.numbers[module] = number;
}

void forget_module(const void* module) {
  Modules& known = modules();
  const std::lock_guard lock(known.mutex);
  known.numbers.erase(module);
}

std::uint32_t current_module() { return current; }

}  // namespace arena::ledger
