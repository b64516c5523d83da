// C++ errors as the classes of arena.errors. Those are written in Python so that they pickle, copy and subclass like
// any other; they are looked up when one is thrown, because arena.errors may not be imported before this module.
#include "base/errors.hpp"

#include <exception>
#include <new>
#include <string_view>

#include "bindings/bindings.hpp"
#include "core/arena.hpp"
#include "trace/trace.hpp"

namespace py = pybind11;

namespace arena {
namespace {

py::object python_class(const char* name) { return py::module_::import("arena.errors").attr(name); }

// The account as plain numbers, so that the error can cross process boundaries.
py::dict account(const Stats& s) {
  using py::literals::operator""_a;
  return py::dict("requested"_a = s.requested, "rounding"_a = s.rounding, "pending"_a = s.pending,
                  "captured"_a = s.captured, "releasable"_a = s.releasable, "stranded"_a = s.stranded,
                  "spare"_a = s.spare, "reserved"_a = s.reserved, "compactable"_a = s.compactable, "cap"_a = s.cap,
                  "headroom"_a = s.headroom, "device_total"_a = s.device_total, "device_free"_a = s.device_free);
}

// Paths and settings that are quoted in a text may be no UTF-8.
py::object text_of(const std::exception& error) {
  const std::string_view text = error.what();
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "backslashreplace"));
}

void raise(const py::object& error) { PyErr_SetObject(py::type::of(error).ptr(), error.ptr()); }

void translate(std::exception_ptr thrown) {
  if (!thrown) return;
  try {
    std::rethrow_exception(thrown);
  } catch (const DriverError& error) {
    using py::literals::operator""_a;
    raise(python_class("DriverError")(text_of(error), "call"_a = error.call(), "code"_a = error.code(),
                                      "name"_a = error.name()));
  } catch (const OutOfMemory& error) {
    raise(python_class("OutOfMemoryError")(text_of(error), error.verdict(), error.requested(), error.largest(),
                                           account(error.stats())));
  } catch (const TraceError& error) {
    raise(python_class("TraceError")(text_of(error)));
  } catch (const UsageError& error) {
    raise(python_class("UsageError")(text_of(error)));
  } catch (const Error& error) {
    raise(python_class("ArenaError")(text_of(error)));
  }
}

}  // namespace

bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

void raise_thrown() {
  try {
    translate(std::current_exception());
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

void bind_errors(py::module_& module) {
  py::register_local_exception_translator(translate);
  module.def(
      "show_unraisable",
      [](const py::object& error, const py::object& where) {
        PyErr_Restore(py::type::of(error).release().ptr(), py::object(error).release().ptr(),
                      py::object(error.attr("__traceback__")).release().ptr());
        PyErr_WriteUnraisable(where.ptr());
      },
      py::arg("error"), py::arg("where"), "Show an exception as those in __del__ are shown.");
}

}  // namespace arena
