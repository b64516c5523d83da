// The parts of the extension module, one function each, called by module.cpp.
#pragma once

#include <pybind11/pybind11.h>

namespace arena {

// Lets other Python threads run while it lives. Not pybind11's own: in a thread that outlives the interpreter, to take
// the GIL back ends the thread, by an unwinding that a noexcept destructor would turn into the end of the process.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() noexcept(false) { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// Whether the interpreter is ending: nobody can be called, or waited for.
bool is_finalizing();

// The C++ exception that is being handled, as Python's. For functions that pybind11 does not call.
void raise_thrown();

void bind_errors(pybind11::module_& module);
void bind_driver(pybind11::module_& module);
void bind_lines(pybind11::module_& module);
void bind_trace(pybind11::module_& module);
void bind_arena(pybind11::module_& module);
void bind_allocator(pybind11::module_& module);

namespace buffers {
void bind(pybind11::module_& module);
}
namespace cupy {
void bind(pybind11::module_& module);
}

}  // namespace arena
