#include "bindings/hooks.hpp"

#include "bindings/cupy.hpp"

namespace py = pybind11;

namespace arena::cupy {
namespace {

py::dict with(const py::dict& facts, std::initializer_list<std::pair<const char*, py::object>> more) {
  const auto made = py::reinterpret_steal<py::dict>(PyDict_Copy(facts.ptr()));
  for (const auto& [name, value] : more) made[name] = value;
  return made;
}

// Reports what was taken from the device. That is known only afterwards, so both hooks are called then.
void call_alloc_hooks(const py::object& hooks, const py::object& device, const py::object& taken,
                      const py::object& address) {
  if (taken.cast<long long>() <= 0) return;
  py::dict facts;
  facts["device_id"] = device;
  facts["mem_size"] = taken;
  call_hooks(hooks, "alloc_preprocess", facts);
  call_hooks(hooks, "alloc_postprocess", with(facts, {{"mem_ptr", address}}));
}

// Calls the hooks as CuPy's own pool does.
py::object malloc_hooked(const py::module_& bridge, const py::object& pool, const py::object& given,
                         const py::object& hooks) {
  bridge.attr("check_device")(pool);
  const py::tuple sizes = bridge.attr("sizes_of")(given);
  const py::object before = pool.attr("total_bytes")(), size = sizes[0];
  py::dict facts;
  facts["device_id"] = pool.attr("device");
  facts["mem_size"] = sizes[1];
  facts["size"] = size;
  call_hooks(hooks, "malloc_preprocess", facts);
  const auto end = [&](const py::object& address, const py::object& id) {
    call_hooks(hooks, "malloc_postprocess", with(facts, {{"mem_ptr", address}, {"pmem_id", id}}));
  };
  py::object pointer;
  try {
    pointer = bridge.attr("malloc_unhooked")(pool, size);
  } catch (const py::error_already_set&) {
    end(py::int_(0), py::int_(0));
    throw;
  }
  const py::object address = pointer.attr("ptr"), memory = pointer.attr("mem");
  const auto id = py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(memory.ptr()));
  try {
    call_alloc_hooks(hooks, facts["device_id"], pool.attr("total_bytes")() - before, address);
  } catch (const py::error_already_set&) {
    end(address, id);
    throw;
  }
  end(address, id);
  return pointer;
}

// Null without an exception if there are no hooks, or if that is not known: the path without hooks reports why.
py::object malloc_if_hooked(PyObject* pool, PyObject* size) {
  if (is_connected() && is_unhooked()) return {};
  const auto bridge = py::reinterpret_steal<py::module_>(PyImport_ImportModule("arena._cupy.bridge"));
  if (!bridge) {
    PyErr_Clear();
    return {};
  }
  const py::object hooks = bridge.attr("memory_hooks")();
  if (hooks.is_none() || py::len(hooks) == 0) return {};
  const auto given = py::reinterpret_borrow<py::object>(size);
  return malloc_hooked(bridge, pool ? py::reinterpret_borrow<py::object>(pool) : bridge.attr("default_pool")(), given,
                       hooks);
}

}  // namespace

void call_hooks(const py::object& hooks, const char* method, const py::dict& facts) {
  for (const py::handle hook : py::list(hooks.attr("values")())) hook.attr(method)(**facts);
}

PyObject* malloc_by_python(PyObject* pool, PyObject* size) {
  try {
    if (py::object made = malloc_if_hooked(pool, size)) return made.release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
  if (pool != nullptr) return PyObject_CallMethod(pool, "_malloc_by_python", "O", size);
  PyObject* module = PyImport_ImportModule("arena._pool.defaults");
  if (module == nullptr) return nullptr;
  PyObject* made = PyObject_CallMethod(module, "malloc_by_python", "O", size);
  Py_DECREF(module);
  return made;
}

}  // namespace arena::cupy
