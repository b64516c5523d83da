// The parts of the extension module, one function each, called by module.cpp.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <memory>
#include <thread>

#if __has_include(<bits/cxxabi_forced.h>)
#include <cxxabi.h>
#define ARENA_FORCED_UNWIND
#endif

namespace arena {

// Wraps code that takes the GIL or runs Python. In a thread that outlives the interpreter, CPython ends the thread by a forced
// unwind. Destructors would then use Python without the GIL, or terminate the process because they are noexcept. So the
// thread sleeps until the process ends, as with Python 3.14 and later. The caller must not hold a lock.
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

// Releases the GIL for its lifetime.
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

// Runs a function with the GIL, in any thread. If the function calls Python, everything it owns must be safe to drop without
// the GIL.
template <typename Function>
auto with_gil(const Function& function) {
  return or_stay([&] {
    const pybind11::gil_scoped_acquire gil;
    return or_stay(function);
  });
}

// Whether the interpreter is shutting down: no Python code can run, and no thread can be waited for.
bool is_finalizing();

// Keeps a Python object alive. It is released with the GIL, or leaked if the interpreter has ended.
std::shared_ptr<void> keep_alive(pybind11::object object);

// Sets the Python exception for the C++ exception being handled. For functions that pybind11 does not call.
void raise_thrown();

void bind_errors(pybind11::module_& module);
void bind_driver(pybind11::module_& module);
void bind_timing(pybind11::module_& module);
void bind_lines(pybind11::module_& module);
void bind_trace(pybind11::module_& module);
void bind_threads(pybind11::module_& module);
void bind_signals(pybind11::module_& module);
void bind_streams(pybind11::module_& module);
void bind_stats(pybind11::module_& module);
void bind_watch(pybind11::module_& module);
void bind_failure(pybind11::module_& module);
void bind_arena(pybind11::module_& module);
void bind_pool_state(pybind11::module_& module);
void bind_slow_path(pybind11::module_& module);
void bind_allocator(pybind11::module_& module);

namespace buffers {
void bind(pybind11::module_& module);
}
namespace cupy {
void bind(pybind11::module_& module);
}

}  // namespace arena
