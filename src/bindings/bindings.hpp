// The parts of the extension module, one function each, called by module.cpp.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <string>
#include <thread>

#if __has_include(<bits/cxxabi_forced.h>)
#include <cxxabi.h>
#define ARENA_FORCED_UNWIND
#endif

namespace arena {

// For what takes the GIL, or runs Python. In a thread that outlives the interpreter that ends the thread, by an unwinding
// in which destructors would do without the GIL what needs it, or end the process because they are noexcept. So the
// thread stays where it is until the process ends, as with Python 3.14 and later. It must not hold a lock.
template <typename Function>
auto or_stay(const Function& function) {
#ifdef ARENA_FORCED_UNWIND
  try {
    return function();
  } catch (const abi::__forced_unwind&) {
    while (true) std::this_thread::sleep_for(std::chrono::hours(1));
  }
#else
  return function();
#endif
}

// Lets other Python threads run while it lives.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    or_stay([this] { PyEval_RestoreThread(state_); });
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// Whether the interpreter is ending: nobody can be called, or waited for.
bool is_finalizing();

// The arena.OutOfMemoryError of a request that failed.
struct Failure;
pybind11::object out_of_memory(const std::string& text, const Failure& failure);

// The C++ exception that is being handled, as Python's. For functions that pybind11 does not call.
void raise_thrown();

void bind_errors(pybind11::module_& module);
void bind_driver(pybind11::module_& module);
void bind_timing(pybind11::module_& module);
void bind_lines(pybind11::module_& module);
void bind_trace(pybind11::module_& module);
void bind_threads(pybind11::module_& module);
void bind_signals(pybind11::module_& module);
void bind_arena(pybind11::module_& module);
void bind_allocator(pybind11::module_& module);

namespace buffers {
void bind(pybind11::module_& module);
}
namespace cupy {
void bind(pybind11::module_& module);
}

}  // namespace arena
