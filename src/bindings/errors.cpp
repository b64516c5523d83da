// C++ errors as the classes of arena.errors. Those are written in Python, so that they pickle, copy and subclass like any other.
#include "base/errors.hpp"

#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/failure.hpp"
#include "trace/trace.hpp"

namespace py = pybind11;

namespace arena {
namespace {

// The classes of arena.errors, which registers them when it is imported: near the recursion limit, or while the interpreter
// shuts down, nothing can be imported. Never dropped: an error may be raised after the interpreter has ended.
struct Classes {
  py::handle arena, driver, out_of_memory, trace, usage;
};
Classes classes;

void set_classes(const py::object& errors) {
  const auto find = [&](const char* name) { return py::object(errors.attr(name)).release(); };
  classes = {.arena = find("ArenaError"),
             .driver = find("DriverError"),
             .out_of_memory = find("OutOfMemoryError"),
             .trace = find("TraceError"),
             .usage = find("UsageError")};
}

// The account as plain numbers, so that the error can cross process boundaries.
py::dict account(const Stats& s) {
  // Not by keyword arguments: pybind11 compares those, and at the recursion limit nothing can be compared.
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

// Paths and settings that a text quotes may not be UTF-8.
py::object text_of(std::string_view text) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "backslashreplace"));
}

py::object text_of(const std::exception& error) { return text_of(std::string_view(error.what())); }

void translate(std::exception_ptr thrown) {
  if (!thrown) return;
  try {
    std::rethrow_exception(thrown);
  } catch (const DriverError& error) {
    using py::literals::operator""_a;
    raise(classes.driver(text_of(error), "call"_a = error.call(), "code"_a = error.code(), "name"_a = error.name()));
  } catch (const OutOfMemory& error) {
    raise(out_of_memory({.failure = error.failure()}));
  } catch (const TraceError& error) {
    raise(classes.trace(text_of(error)));
  } catch (const UsageError& error) {
    raise(classes.usage(text_of(error)));
  } catch (const Error& error) {
    raise(classes.arena(text_of(error)));
  }
}

}  // namespace

void raise(const py::object& error) { PyErr_SetObject(py::type::of(error).ptr(), error.ptr()); }

// The attributes are set here, in the order of __init__'s parameters, because __init__ is not called.
py::object out_of_memory(const RequestFailure& failed, const ErrorDetails& details) {
  const Failure& failure = failed.failure;
  const BudgetUse none, &use = failure.budget ? *failure.budget : none;
  const std::string headline =
      failed.size ? failure.headline(py::str("{:,} bytes").format(failed.size)) : failure.headline();
  const std::pair<const char*, py::object> fields[] = {
      {"verdict", text_of(failure.verdict_text())},
      {"requested", failed.size ? failed.size : py::int_(failure.requested)},
      {"largest", py::int_(failure.largest)},
      {"account", account(failure.stats)},
      {"holders", details.holders},
      {"largest_with_moving", py::int_(failure.by_moving.largest)},
      {"set_free_by_moving", py::int_(failure.by_moving.set_free)},
      {"moving", details.moving},
      {"most", py::int_(failure.most)},
      {"scope", text_of(use.scope)},
      {"budget", py::int_(use.budget)},
      {"budget_used", py::int_(use.live)},
      {"line", details.line},
  };
  py::tuple args(1 + std::size(fields));
  args[0] = text_of(headline);
  for (std::size_t i = 0; i < std::size(fields); ++i) args[i + 1] = fields[i].second;
  const py::handle chosen = failed.error_type ? failed.error_type : classes.out_of_memory;
  auto* type = reinterpret_cast<PyTypeObject*>(chosen.ptr());
  auto made = py::reinterpret_steal<py::object>(type->tp_new(type, args.ptr(), nullptr));
  if (!made) throw py::error_already_set();
  for (const auto& [name, value] : fields) made.attr(name) = value;
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

namespace {

// Python objects to drop when a thread runs Python. Never destroyed: a thread may still run when the process exits.
struct PutOff {
  std::mutex mutex;
  std::vector<PyObject*> objects;
};
PutOff& put_off() {
  static auto& objects = *new PutOff;
  return objects;
}

int drop_put_off(void*) {
  std::vector<PyObject*> objects;
  {
    const std::lock_guard lock(put_off().mutex);
    objects.swap(put_off().objects);
  }
  for (PyObject* object : objects) Py_DECREF(object);
  return 0;
}

}  // namespace

void drop_when_possible(PyObject* held) {
  if (Py_IsInitialized() == 0 || is_finalizing()) return;
  if (!WithoutPython::is_here()) {
    with_gil([&] { Py_DECREF(held); });
    return;
  }
  {
    const std::lock_guard lock(put_off().mutex);
    put_off().objects.push_back(held);
  }
  Py_AddPendingCall(&drop_put_off,
                    nullptr);  // if there are too many already, one of them may be ours, or the next drops it
}

std::shared_ptr<void> keep_alive(py::object object) {
  return std::shared_ptr<PyObject>(object.release().ptr(), &drop_when_possible);
}

void bind_errors(py::module_& module) {
  module.def("set_error_classes", &set_classes, py::arg("errors"),
             "Register the classes to raise: those of the module arena.errors, when it is imported.");
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
      py::arg("error"), py::arg("where"), "Show an exception as Python shows those in __del__.");
}

}  // namespace arena
