#include "bindings/cupy.hpp"

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "bindings/buffer.hpp"
#include "bindings/hooks.hpp"

namespace py = pybind11;

namespace arena::cupy {

using buffers::free_quietly;

namespace {

// The layouts of CuPy's extension types, as far as they are written here. connect() checks them.
struct BaseMemory {
  PyObject_HEAD std::intptr_t ptr;
  std::size_t size;
  int device_id;
};
struct MemoryPointer {
  PyObject_HEAD void* methods;
  std::intptr_t ptr;
  int device_id;
  PyObject* mem;
};

// A BaseMemory that owns a block. Programs can write CuPy's fields, so it frees by its own.
struct BlockMemory {
  BaseMemory base;
  PoolRef state;
  Block* block;
};

// How a MemoryPointer is made: by writing its fields, or by calling its type, which is slower.
enum class Way { kWritten, kCalled };

// What was found in CuPy. Created once and never destroyed: memory may be freed until the process ends.
struct Found {
  PyTypeObject* block_memory;
  PyTypeObject* pointer;
  void* pointer_methods;
  Way way;
  int (*has_hooks)(int);
  PyObject* (*hooks)(int);
  int (*device)(int);                 // null if not found
  std::intptr_t (*stream_of)(int);    // null if not found: before CuPy 14
  std::intptr_t (*current_stream)();  // null if not found
};

std::atomic<const Found*> found{nullptr};
std::atomic<PyObject*> error_class{nullptr};  // never dropped
std::atomic<bool> no_runtime{false};
std::atomic<bool> is_simulation_allowed{false};
// Asking CuPy for hooks takes as long as the rest of a hit. So each thread asks once, for hooks registered before arena was
// imported; notice_hooks() reports later ones.
std::atomic<bool> may_have_hooks{false};
thread_local bool was_asked = false;

[[gnu::always_inline]] inline bool need_not_ask() {
  return was_asked && !may_have_hooks.load(std::memory_order_relaxed);
}

// CuPy's hooks of this thread, in a dictionary; null if that fails.
py::object hooks_of(const Found& cupy) {
  auto hooks = py::reinterpret_steal<py::object>(cupy.hooks(0));
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  return hooks;
}

void call_free_hooks(const char* method, const BlockMemory& memory, std::uint64_t address) {
  try {
    py::dict facts;
    facts["device_id"] = memory.base.device_id;
    facts["mem_size"] = memory.base.size;
    facts["mem_ptr"] = address;
    facts["pmem_id"] = py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(const_cast<BlockMemory*>(&memory)));
    if (const py::object hooks = hooks_of(*found.load())) call_hooks(hooks, method, facts);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable(method);
  }
}

// May be called while an exception is set, which must survive.
[[gnu::noinline]] void give_back(const BlockMemory& memory, const PoolState& state) {
  Arena& core = *state.core;
  if (need_not_ask()) return free_quietly(core, *memory.block);
  const py::error_scope pending;
  if (is_unhooked()) return free_quietly(core, *memory.block);
  const std::uint64_t address = memory.block->address;  // once it is freed, the block may be reused
  call_free_hooks("free_preprocess", memory, address);
  free_quietly(core, *memory.block);
  call_free_hooks("free_postprocess", memory, address);
}

// The same if that needs neither hooks nor waiting; otherwise false.
[[gnu::always_inline]] inline bool try_give_back(const BlockMemory& memory, const PoolState& state) {
  if (!need_not_ask()) return false;
  try {
    return state.core->try_free(*memory.block);
  } catch (const std::exception&) {
    return true;
  }
}

// Dropped objects are used again: Python's allocator would take as long as the arena's cache. Arrays come and go in turn, so a few
// are enough. Under the GIL only. They keep their reference to their type.
#ifdef Py_GIL_DISABLED
BlockMemory* new_memory(const Found& cupy) {
  return reinterpret_cast<BlockMemory*>(PyObject_New(PyObject, cupy.block_memory));
}
void delete_memory(PyObject* memory) {
  PyTypeObject* type = Py_TYPE(memory);
  type->tp_free(memory);
  Py_DECREF(type);
}
#else
constexpr std::size_t kMostUnused = 256;
std::array<PyObject*, kMostUnused> unused_memory;
std::size_t unused_count = 0;

[[gnu::always_inline]] inline BlockMemory* new_memory(const Found& cupy) {
  if (unused_count == 0) return reinterpret_cast<BlockMemory*>(PyObject_New(PyObject, cupy.block_memory));
  PyObject* made = unused_memory[--unused_count];
  _Py_NewReference(made);
  return reinterpret_cast<BlockMemory*>(made);
}
[[gnu::always_inline]] inline void delete_memory(PyObject* memory) {
  if (unused_count < kMostUnused) {
    unused_memory[unused_count++] = memory;
    return;
  }
  PyTypeObject* type = Py_TYPE(memory);
  type->tp_free(memory);
  Py_DECREF(type);
}
#endif

// Like CuPy's PooledMemory: the address is 0 afterwards, and a second call does nothing.
PyObject* free_now(PyObject* self, PyObject*) {
  auto& memory = *reinterpret_cast<BlockMemory*>(self);
  PoolRef state;
#ifdef Py_GIL_DISABLED
  Py_BEGIN_CRITICAL_SECTION(self);
#endif
  std::swap(state, memory.state);
  memory.base.ptr = 0;
#ifdef Py_GIL_DISABLED
  Py_END_CRITICAL_SECTION();
#endif
  if (state) give_back(memory, *state);
  Py_RETURN_NONE;
}

void dealloc(PyObject* self) {
  auto& memory = *reinterpret_cast<BlockMemory*>(self);
  // While the interpreter shuts down no code can run and no thread can be waited for; the end of the process frees everything.
  if (is_finalizing()) {
    [[maybe_unused]] const auto* lost = new PoolRef(std::move(memory.state));
  } else if (memory.state && !try_give_back(memory, *memory.state)) {
    give_back(memory, *memory.state);
  }
  std::destroy_at(&memory.state);
  delete_memory(self);
}

PyTypeObject* new_type(const py::object& base) {
  static char doc[] = "A block of an arena. It is given back when the last array that views it is gone.";
  static PyMethodDef methods[] = {
      {"free", &free_now, METH_NOARGS,
       "free($self, /)\n--\n\nGive the memory back now. Arrays that view it must not be used afterwards."},
      {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(&dealloc)}, {Py_tp_methods, methods}, {Py_tp_doc, doc}, {0, nullptr}};
  static PyType_Spec spec = {"arena._core.BlockMemory", sizeof(BlockMemory), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  PyObject* type = PyType_FromSpecWithBases(&spec, py::make_tuple(base).ptr());
  if (type == nullptr) throw py::error_already_set();
  return reinterpret_cast<PyTypeObject*>(type);
}

// Steals the reference to the memory. Every field is written, so the object need not be made by its type. The garbage collector does
// not track it: it refers to a BlockMemory, which refers to no object, so that it is in no cycle.
PyObject* written_pointer(const Found& cupy, PyObject* memory) {
  auto* pointer = reinterpret_cast<MemoryPointer*>(PyObject_GC_New(PyObject, cupy.pointer));
  if (pointer == nullptr) {
    Py_DECREF(memory);
    return nullptr;
  }
  const auto& base = *reinterpret_cast<const BaseMemory*>(memory);
  pointer->methods = cupy.pointer_methods;
  pointer->ptr = base.ptr;
  pointer->device_id = base.device_id;
  pointer->mem = memory;
  return reinterpret_cast<PyObject*>(pointer);
}

PyObject* called_pointer(const Found& cupy, PyObject* memory) {
  PyObject* made = PyObject_CallFunction(reinterpret_cast<PyObject*>(cupy.pointer), "Oi", memory, 0);
  Py_DECREF(memory);
  return made;
}

template <typename Function>
Function* function(const py::dict& capsules, const char* name, const char* signature) {
  PyObject* capsule = PyDict_GetItemString(capsules.ptr(), name);
  if (capsule == nullptr || PyCapsule_IsValid(capsule, signature) == 0) return nullptr;
  return reinterpret_cast<Function*>(PyCapsule_GetPointer(capsule, signature));
}

enum class Collected { kNo, kYes };  // by the garbage collector

bool has_layout(PyTypeObject* type, std::size_t size, Collected collected) {
  const bool is_collected = PyType_HasFeature(type, Py_TPFLAGS_HAVE_GC) != 0;
  return type->tp_basicsize == static_cast<Py_ssize_t>(size) && type->tp_itemsize == 0 &&
         is_collected == (collected == Collected::kYes);
}

constexpr std::intptr_t kSampleAddress = 0x123456000;
constexpr std::size_t kSampleSize = 0x777;
constexpr int kSampleDevice = 3;

// Reads the fields of an object that CuPy made.
bool is_as_expected(const py::object& base, const py::object& sample) {
  if (!has_layout(reinterpret_cast<PyTypeObject*>(base.ptr()), sizeof(BaseMemory), Collected::kNo)) return false;
  const auto& memory = *reinterpret_cast<const BaseMemory*>(sample.ptr());
  return memory.ptr == kSampleAddress && memory.size == kSampleSize && memory.device_id == kSampleDevice;
}

// Reads the fields of an object that CuPy made, and lets CuPy read those of one written here.
bool can_be_written(Found& cupy, const py::object& sample) {
  if (!has_layout(cupy.pointer, sizeof(MemoryPointer), Collected::kYes)) return false;
  const py::object called = py::handle(reinterpret_cast<PyObject*>(cupy.pointer))(sample, 16);
  const auto& fields = *reinterpret_cast<const MemoryPointer*>(called.ptr());
  if (fields.ptr != kSampleAddress + 16 || fields.device_id != kSampleDevice || fields.mem != sample.ptr()) {
    return false;
  }
  cupy.pointer_methods = fields.methods;
  const auto written = py::reinterpret_steal<py::object>(written_pointer(cupy, sample.inc_ref().ptr()));
  if (!written) throw py::error_already_set();
  return written.attr("ptr").cast<std::intptr_t>() == kSampleAddress &&
         written.attr("device_id").cast<int>() == kSampleDevice && written.attr("mem").ptr() == sample.ptr();
}

std::unique_ptr<Found> inspect(const py::object& memory_module, const py::dict& capsules) {
  constexpr const char* plain = "int (int __pyx_skip_dispatch)";
  auto cupy = std::make_unique<Found>();
  cupy->has_hooks = function<int(int)>(capsules, "_has_memory_hooks", plain);
  cupy->hooks = function<PyObject*(int)>(capsules, "get_memory_hooks", "PyObject *(int __pyx_skip_dispatch)");
  cupy->device = function<int(int)>(capsules, "get_device_id", plain);
  cupy->stream_of = function<std::intptr_t(int)>(capsules, "get_stream_ptr", "intptr_t (int)");
  cupy->current_stream = function<std::intptr_t()>(capsules, "get_current_stream_ptr", "intptr_t (void)");
  if (cupy->has_hooks == nullptr || cupy->hooks == nullptr) return nullptr;

  const py::object base = memory_module.attr("BaseMemory"), pointer = memory_module.attr("MemoryPointer");
  if (!PyType_Check(base.ptr()) || !PyType_Check(pointer.ptr())) return nullptr;
  const py::object sample = memory_module.attr("UnownedMemory")(kSampleAddress, kSampleSize, py::none(), kSampleDevice);
  if (!is_as_expected(base, sample)) return nullptr;
  cupy->pointer = reinterpret_cast<PyTypeObject*>(pointer.inc_ref().ptr());
  cupy->block_memory = new_type(base);
  cupy->way = can_be_written(*cupy, sample) ? Way::kWritten : Way::kCalled;
  return cupy;
}

std::string connect(const py::object& memory_module, const py::dict& capsules, py::object out_of_memory_error) {
  error_class = out_of_memory_error.release().ptr();
  if (!is_connected()) {
    try {
      found = inspect(memory_module, capsules).release();
    } catch (const py::error_already_set&) {  // a CuPy with other internals
    }
  }
  if (!is_connected()) return "generic";
  return found.load()->way == Way::kWritten ? "written" : "called";
}

}  // namespace

bool is_connected() { return found.load(std::memory_order_acquire) != nullptr; }

bool may_simulate() { return has_no_runtime() || is_simulation_allowed.load(std::memory_order_relaxed); }

bool has_no_runtime() { return no_runtime.load(std::memory_order_relaxed); }

namespace {

[[gnu::noinline]] bool ask_for_hooks() {
  const Found& cupy = *found.load(std::memory_order_acquire);
  const int answer = cupy.has_hooks(0);
  was_asked = true;
  if (answer == 0) return true;
  may_have_hooks = true;
  // Once a thread had a hook, CuPy keeps its dictionary, which may be empty.
  const py::object hooks = answer == 1 ? hooks_of(cupy) : py::object();
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  return hooks && PyObject_Size(hooks.ptr()) == 0;
}

}  // namespace

bool is_unhooked() { return need_not_ask() || ask_for_hooks(); }

int current_device() {
  const Found& cupy = *found.load(std::memory_order_acquire);
  if (cupy.device == nullptr) return -1;
  const int device = cupy.device(0);
  if (device < 0) PyErr_Clear();
  return device;
}

bool find_current_stream(int device, cu::Stream& stream) {
  const Found& cupy = *found.load(std::memory_order_acquire);
  std::intptr_t number = -1;
  if (cupy.stream_of != nullptr) {
    number = cupy.stream_of(device);
  } else if (cupy.current_stream != nullptr && current_device() == device) {
    number = cupy.current_stream();
  }
  stream = reinterpret_cast<cu::Stream>(number);
  if (number != -1) return true;
  PyErr_Clear();
  return false;
}

py::object current_stream_object(int device) {
  return py::module_::import("arena._cupy.bridge").attr("current_stream")(device);
}

py::handle error_type() { return error_class.load(std::memory_order_acquire); }

PyObject* new_pointer(PoolRef&& state, Block& block) {
  const Found& cupy = *found.load(std::memory_order_acquire);
  BlockMemory* made = new_memory(cupy);
  if (made == nullptr) {
    free_quietly(*state->core, block);
    return nullptr;
  }
  BlockMemory& memory = *made;  // every field is written
  memory.base.ptr = static_cast<std::intptr_t>(block.address);
  memory.base.size = block.size;
  memory.base.device_id = state->device;
  std::construct_at(&memory.state, std::move(state));
  memory.block = &block;
  auto* object = reinterpret_cast<PyObject*>(made);
  return cupy.way == Way::kWritten ? written_pointer(cupy, object) : called_pointer(cupy, object);
}

void bind(py::module_& module) {
  module.def("connect_cupy", &connect, py::arg("memory_module"), py::arg("capsules"), py::arg("out_of_memory_error"),
             "Inspect CuPy. Returns how memory is handed to it: \"written\", \"called\" or \"generic\".");
  module.def("notice_hooks", [] { may_have_hooks = true; }, "Note that CuPy may have memory hooks from now on.");
  module.def("has_no_runtime", [] { no_runtime = true; }, "Note that CuPy has no CUDA runtime in this process.");
  module.def(
      "allow_simulation", [] { is_simulation_allowed = true; },
      "Note that CuPy's runtime, if it has one, can use memory of the simulated driver.");
}

}  // namespace arena::cupy
