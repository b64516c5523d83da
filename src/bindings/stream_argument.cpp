#include "bindings/stream_argument.hpp"

#include <string>

#include "bindings/bindings.hpp"

namespace py = pybind11;

namespace arena {
namespace {

// Interned: a lookup compares addresses. Never dropped.
struct Names {
  PyObject* cuda_stream = nullptr;
  PyObject* ptr = nullptr;
  PyObject* handle = nullptr;
  PyObject* value = nullptr;
  PyObject* external = nullptr;
};
Names names;

// Null if there is none, or if an exception is set. Raises no AttributeError, which makes it much faster.
py::object attribute(PyObject* object, PyObject* name) {
  PyObject* found = nullptr;
#if PY_VERSION_HEX >= 0x030D0000
  PyObject_GetOptionalAttr(object, name, &found);
#else
  _PyObject_LookupAttr(object, name, &found);
#endif
  return py::reinterpret_steal<py::object>(found);
}

// Returns (version of the protocol, number).
std::optional<cu::Stream> from_protocol(const py::object& method) {
  const auto answer = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(method.ptr()));
  if (!answer || !PyTuple_CheckExact(answer.ptr()) || PyTuple_GET_SIZE(answer.ptr()) != 2) return std::nullopt;
  return read_stream_number(PyTuple_GET_ITEM(answer.ptr(), 1));
}

// A number, or one of ctypes.
std::optional<cu::Stream> from_handle(const py::object& handle) {
  if (PyLong_CheckExact(handle.ptr())) return read_stream_number(handle.ptr());
  const py::object value = attribute(handle.ptr(), names.value);
  return value ? read_stream_number(value.ptr()) : std::nullopt;
}

}  // namespace

// PyLong_AsUnsignedLongLong takes five times as long for a number of more than 30 bits, as most streams are.
std::optional<cu::Stream> read_stream_number(PyObject* number) {
  if (!PyLong_CheckExact(number)) return std::nullopt;
  const Py_ssize_t small = PyLong_AsSsize_t(number);
  if (small >= 0) return reinterpret_cast<cu::Stream>(small);
  PyErr_Clear();
  const auto stream = PyLong_AsUnsignedLongLong(number);
  if (stream != ~0ULL || PyErr_Occurred() == nullptr) return reinterpret_cast<cu::Stream>(stream);
  PyErr_Clear();
  return std::nullopt;
}

std::optional<cu::Stream> read_stream(PyObject* given) {
  if (PyIndex_Check(given)) return std::nullopt;
  if (const py::object method = attribute(given, names.cuda_stream)) return from_protocol(method);
  for (PyObject* name : {names.ptr, names.handle}) {
    if (PyErr_Occurred() != nullptr) return std::nullopt;
    const py::object handle = attribute(given, name);
    if (handle && !handle.is_none()) return from_handle(handle);
  }
  return std::nullopt;
}

// CuPy wraps streams of other libraries in an ExternalStream; Numba's have `external` set.
bool owns_stream(PyObject* given) {
  if (PyIndex_Check(given)) return false;
  if (py::type::of(given).attr("__name__").cast<std::string>() == "ExternalStream") return false;
  const py::object external = attribute(given, names.external);
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return !external.is(py::handle(Py_True));
}

void bind_streams(py::module_& module) {
  names = {.cuda_stream = PyUnicode_InternFromString("__cuda_stream__"),
           .ptr = PyUnicode_InternFromString("ptr"),
           .handle = PyUnicode_InternFromString("handle"),
           .value = PyUnicode_InternFromString("value"),
           .external = PyUnicode_InternFromString("external")};
  module.def(
      "owns_stream", [](const py::object& stream) { return owns_stream(stream.ptr()); }, py::arg("stream"),
      "Whether an object keeps its stream alive.");
}

}  // namespace arena
