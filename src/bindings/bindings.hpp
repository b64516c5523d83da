// The parts of the extension module, one function each, called by module.cpp.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

namespace arena {

// Releases the GIL for its lifetime. A thread that outlives the interpreter never gets it back: ending_threads.cpp.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// Runs a function with the GIL, in any thread.
template <typename Function>
auto with_gil(const Function& function) {
  const pybind11::gil_scoped_acquire gil;
  return function();
}

// While one lives, this thread neither waits for the GIL nor runs Python: Python objects that it would drop are dropped later.
// For functions that are called with another library's lock held, for which a thread with the GIL may wait.
class WithoutPython {
 public:
  WithoutPython() { ++depth_; }
  ~WithoutPython() { --depth_; }
  WithoutPython(const WithoutPython&) = delete;
  WithoutPython& operator=(const WithoutPython&) = delete;
  static bool is_here() { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

// Whether the interpreter is shutting down: no Python code can run, and no thread can be waited for.
bool is_finalizing();

// Drops a Python object with the GIL: now, later if this thread may not wait for it (WithoutPython), or never if the interpreter
// has ended.
void drop_when_possible(PyObject* object);

// Keeps a Python object alive, and drops it when possible.
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
