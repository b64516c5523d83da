// The base class of arena.Buffer, which is written in Python: it owns the block and frees it. A plain type of the C API, so that
// threads that use one arena share no reference count.
#include "bindings/buffer.hpp"

#include <atomic>
#include <memory>
#include <utility>

namespace py = pybind11;

namespace arena::buffers {
namespace {

struct BlockOwner {
  PyObject_HEAD PoolRef state;
  std::atomic<Block*> block;  // null once freed: of several threads that free it, one gets it
  std::uint64_t address;
  Bytes requested;
};

PyTypeObject* owner_type = nullptr;
PyTypeObject* buffer_type = nullptr;  // arena.Buffer, from when it is imported

BlockOwner& owner_of(PyObject* self) { return *reinterpret_cast<BlockOwner*>(self); }

template <typename Try>
bool quietly(const Try& attempt) {
  try {
    return attempt();
  } catch (const std::exception&) {
    return true;
  }
}

PyObject* free_now(PyObject* self, PyObject*) {
  BlockOwner& owner = owner_of(self);
  Block* block = owner.block.exchange(nullptr);
  if (block == nullptr) Py_RETURN_NONE;
  try {
    Arena& core = *owner.state->core;
    if (!core.try_free(*block)) {
      const WithoutGil without_gil;
      core.free(*block);
    }
  } catch (const std::exception&) {
    raise_thrown();
    return nullptr;
  }
  Py_RETURN_NONE;
}

void dealloc(PyObject* self) {
  BlockOwner& owner = owner_of(self);
  Block* block = owner.block.exchange(nullptr);
  // While the interpreter shuts down no thread can be waited for; the end of the process frees everything.
  if (is_finalizing()) {
    [[maybe_unused]] const auto* lost = new PoolRef(std::move(owner.state));
  } else if (block != nullptr) {
    free_quietly(*owner.state->core, *block);
  }
  std::destroy_at(&owner.state);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* get_ptr(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(owner_of(self).address); }
PyObject* get_nbytes(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(owner_of(self).requested); }
PyObject* get_device(PyObject* self, void*) { return PyLong_FromLong(owner_of(self).state->device); }
PyObject* get_core(PyObject* self, void*) {
  const BlockOwner& owner = owner_of(self);
  if (owner.block.load() == nullptr) Py_RETURN_NONE;
  return py::cast(owner.state->core).release().ptr();
}

PyTypeObject* new_owner_type() {
  static char doc[] = "The base class of arena.Buffer. Arena.allocate() makes them.";
  static PyMethodDef methods[] = {
      {"free", &free_now, METH_NOARGS, "free($self, /)\n--\n\nGive the memory back. A second call does nothing."},
      {nullptr, nullptr, 0, nullptr}};
  static PyGetSetDef properties[] = {
      {"ptr", &get_ptr, nullptr, "The address, a multiple of 512; of 256, if ``upstream=`` gives no better.", nullptr},
      {"nbytes", &get_nbytes, nullptr, "The bytes that were requested.", nullptr},
      {"_device", &get_device, nullptr, "The number of the device that it is on.", nullptr},
      {"_core", &get_core, nullptr, "The core of its arena; None if it was freed.", nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(&dealloc)},
                                {Py_tp_methods, methods},
                                {Py_tp_getset, properties},
                                {Py_tp_doc, doc},
                                {0, nullptr}};
  static PyType_Spec spec = {"arena._core.BlockOwner", sizeof(BlockOwner), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  return reinterpret_cast<PyTypeObject*>(type);
}

}  // namespace

void free_quietly(Arena& core, Block& block) {
  if (quietly([&] { return core.try_free(block); })) return;
  const WithoutGil without_gil;
  quietly([&] { return core.free(block), true; });
}

Block& take_block(PyObject* buffer) {
  Block* block = owner_of(buffer).block.exchange(nullptr);
  if (block == nullptr) throw UsageError("the buffer was freed already");
  return *block;
}

PyObject* new_buffer(PoolRef state, Block& block, Bytes requested) {
  PyObject* made = buffer_type->tp_alloc(buffer_type, 0);
  if (made == nullptr) {
    free_quietly(*state->core, block);
    return nullptr;
  }
  BlockOwner& owner = owner_of(made);
  std::construct_at(&owner.state, std::move(state));
  new (&owner.block) std::atomic<Block*>(&block);
  owner.address = block.address;
  owner.requested = requested;
  return made;
}

void bind(py::module_& module) {
  owner_type = new_owner_type();
  module.attr("BlockOwner") = py::handle(reinterpret_cast<PyObject*>(owner_type));
  module.def(
      "set_buffer_type",
      [](const py::type& type) {
        if (PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type.ptr()), owner_type) == 0) {
          throw py::type_error("set_buffer_type takes a class derived from BlockOwner");
        }
        buffer_type = reinterpret_cast<PyTypeObject*>(type.inc_ref().ptr());
      },
      py::arg("type"), "Set the type of buffers. Called once, when arena is imported.");
}

}  // namespace arena::buffers
