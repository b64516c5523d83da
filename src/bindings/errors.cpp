// C++ errors as the classes of arena.errors. Those are written in Python so that they pickle, copy and subclass like
// any other.
#include "base/errors.hpp"

#include <exception>
#include <iterator>
#include <new>
#include <string_view>
#include <utility>

#include "bindings/bindings.hpp"
#include "core/arena/arena.hpp"
#include "trace/trace.hpp"

namespace py = pybind11;

namespace arena {
namespace {

// The classes of arena.errors, found when the module is made: near the recursion limit, or while the interpreter shuts
// down, nothing can be imported. Never dropped: an error may come after the interpreter has ended.
struct Classes {
  py::handle arena, driver, out_of_memory, trace, usage;
};
Classes classes;

void find_classes() {
  const py::module_ errors = py::module_::import("arena.errors");
  const auto find = [&](const char* name) { return py::object(errors.attr(name)).release(); };
  classes = {.arena = find("ArenaError"),
             .driver = find("DriverError"),
             .out_of_memory = find("OutOfMemoryError"),
             .trace = find("TraceError"),
             .usage = find("UsageError")};
}

// The account as plain numbers, so that the error can cross process boundaries.
py::dict account(const Stats& s) {
  // Not by keyword arguments, which pybind11 compares: at the recursion limit nothing can be compared.
  const std::pair<const char*, Bytes> figures[] = {
      {"requested", s.requested},
      {"rounding", s.rounding},
      {"pending", s.pending},
      {"captured", s.captured},
      {"releasable", s.releasable},
      {"stranded", s.stranded},
      {"spare", s.spare},
      {"reserved", s.reserved},
      {"compactable", s.compactable},
      {"cap", s.cap},
      {"headroom", s.headroom},
      {"device_total", s.device_total},
      {"device_free", s.device_free},
  };
  py::dict found;
  for (const auto& [name, bytes] : figures) found[name] = bytes;
  return found;
}

// Paths and settings that are quoted in a text may be no UTF-8.
py::object text_of(std::string_view text) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "backslashreplace"));
}

void raise(const py::object& error) { PyErr_SetObject(py::type::of(error).ptr(), error.ptr()); }

py::object text_of(const std::exception& error) { return text_of(std::string_view(error.what())); }

void translate(std::exception_ptr thrown) {
  if (!thrown) return;
  try {
    std::rethrow_exception(thrown);
  } catch (const DriverError& error) {
    using py::literals::operator""_a;
    raise(classes.driver(text_of(error), "call"_a = error.call(), "code"_a = error.code(), "name"_a = error.name()));
  } catch (const OutOfMemory& error) {
    raise(out_of_memory(error.what(), error.failure()));
  } catch (const TraceError& error) {
    raise(classes.trace(text_of(error)));
  } catch (const UsageError& error) {
    raise(classes.usage(text_of(error)));
  } catch (const Error& error) {
    raise(classes.arena(text_of(error)));
  }
}

}  // namespace

// Without a call of Python: at the recursion limit there is no frame left for __init__, and the error must come through.
py::object out_of_memory(const std::string& text, const Failure& failure) {
  const BudgetUse none, &use = failure.budget ? *failure.budget : none;
  const py::tuple args =
      py::make_tuple(text_of(text), failure.verdict_text(), failure.requested, failure.largest, account(failure.stats),
                     py::tuple(), failure.by_moving.largest, failure.by_moving.set_free, py::str(), failure.most,
                     text_of(use.scope), use.budget, use.live, py::str());
  auto* type = reinterpret_cast<PyTypeObject*>(classes.out_of_memory.ptr());
  auto made = py::reinterpret_steal<py::object>(type->tp_new(type, args.ptr(), nullptr));
  if (!made) throw py::error_already_set();
  const char* names[] = {"verdict",
                         "requested",
                         "largest",
                         "account",
                         "holders",
                         "largest_with_moving",
                         "set_free_by_moving",
                         "moving",
                         "most",
                         "scope",
                         "budget",
                         "budget_used",
                         "line"};
  for (py::size_t i = 0; i < std::size(names); ++i) made.attr(names[i]) = args[i + 1];
  made.attr("_failure") = py::cast(failure);
  return made;
}

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
  find_classes();
  py::dict verdicts;
  for (const VerdictWords& words : kVerdicts) verdicts[words.name] = words.text;
  module.attr("VERDICTS") = verdicts;
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
