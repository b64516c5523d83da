#include "bindings/stream_argument.hpp"

namespace py = pybind11;

namespace arena {
namespace {

// Interned, so that to look one up is to compare addresses. Never dropped.
struct Names {
  PyObject* cuda_stream = nullptr;
  PyObject* ptr = nullptr;
  PyObject* handle = nullptr;
  PyObject* value = nullptr;
};
Names names;

// Null if there is none, or if an exception is set: other than AttributeError, which this is much faster without.
py::object attribute(PyObject* object, PyObject* name) {
  PyObject* found = nullptr;
#if PY_VERSION_HEX >= 0x030D0000
  PyObject_GetOptionalAttr(object, name, &found);
#else
  _PyObject_LookupAttr(object, name, &found);
#endif
  return py::reinterpret_steal<py::object>(found);
}

std::optional<cu::Stream> from_number(PyObject* number) {
  if (!PyLong_CheckExact(number)) return std::nullopt;
  const auto stream = PyLong_AsUnsignedLongLong(number);
  if (stream != ~0ULL || PyErr_Occurred() == nullptr) return reinterpret_cast<cu::Stream>(stream);
  PyErr_Clear();
  return std::nullopt;
}

// (the version of the protocol, the number)
std::optional<cu::Stream> from_protocol(const py::object& method) {
  const auto answer = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(method.ptr()));
  if (!answer || !PyTuple_CheckExact(answer.ptr()) || PyTuple_GET_SIZE(answer.ptr()) != 2) return std::nullopt;
  return from_number(PyTuple_GET_ITEM(answer.ptr(), 1));
}

// A number, or one of ctypes.
std::optional<cu::Stream> from_handle(const py::object& handle) {
  if (PyLong_CheckExact(handle.ptr())) return from_number(handle.ptr());
  const py::object value = attribute(handle.ptr(), names.value);
  return value ? from_number(value.ptr()) : std::nullopt;
}

}  // namespace

void intern_stream_names() {
  names = {.cuda_stream = PyUnicode_InternFromString("__cuda_stream__"),
           .ptr = PyUnicode_InternFromString("ptr"),
           .handle = PyUnicode_InternFromString("handle"),
           .value = PyUnicode_InternFromString("value")};
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

}  // namespace arena
