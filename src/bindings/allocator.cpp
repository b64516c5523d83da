// The functions that programs call for memory: `allocate` and `malloc` of every arena.Arena, and arena.malloc. They are plain
// functions of the C API, because they are called for every array. The quick path serves hits. Everything else, errors
// included, is left to the slow path (slow_path.hpp), and unusual arguments to Python.
#include <algorithm>
#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "bindings/buffer.hpp"
#include "bindings/cupy.hpp"
#include "bindings/hooks.hpp"
#include "bindings/lines.hpp"
#include "bindings/slow_path.hpp"
#include "bindings/stream_argument.hpp"
#include "bindings/torch/functions.hpp"
#include "core/arena/trimming.hpp"

namespace py = pybind11;

namespace arena {
namespace {

using lines::Framework;

// A source that one thread may remove while another allocates.
#ifdef Py_GIL_DISABLED
// Threads use copies of it, each with a lock and a reference count of its own: shared ones would bounce between processors.
class Slot {
 public:
  Source get() {
    thread_local const std::size_t mine = next_++ % kCopies;
    Copy& copy = copies_[mine];
    const Guard guard(copy.mutex);
    return copy.source;
  }
  void set(const Source& source) {
    for (Copy& copy : copies_) {
      Source other = source.core ? counted_apart(source) : Source{};
      const Guard guard(copy.mutex);
      std::swap(copy.source, other);
    }  // the previous source is destroyed after the guard
  }
  void forget(const std::shared_ptr<Arena>& core) {
    for (Copy& copy : copies_) {
      Source other;
      const Guard guard(copy.mutex);
      if (copy.source.core == core) std::swap(copy.source, other);
    }
  }

 private:
  static constexpr std::size_t kCopies = 16, kLine = 64;  // bytes in a cache line
  struct Guard {
    explicit Guard(PyMutex& mutex) : mutex(mutex) { PyMutex_Lock(&mutex); }
    ~Guard() { PyMutex_Unlock(&mutex); }
    PyMutex& mutex;
  };
  struct alignas(kLine) Copy {
    PyMutex mutex{};
    Source source;
  };
  struct alignas(kLine) Owner {
    std::shared_ptr<Arena> core;
  };
  static Source counted_apart(const Source& source) {
    Source copy = source;
    copy.core = std::shared_ptr<Arena>(std::make_shared<Owner>(Owner{source.core}), source.core.get());
    return copy;
  }

  static inline std::atomic<std::size_t> next_{0};
  std::vector<Copy> copies_ = std::vector<Copy>(kCopies);  // not inline: Python's objects need not be aligned to a line
};
#else
class Slot {
 public:
  const Source& get() const { return source_; }
  void set(Source source) {
    std::swap(source_, source);
  }  // the previous source is destroyed when the slot no longer has it
  void forget(const std::shared_ptr<Arena>& core) {
    if (source_.core == core) set({});
  }

 private:
  Source source_;
};
#endif

// The default arenas by device. Never destroyed: arenas clear their slots when they are closed or dropped.
std::array<Slot, 64>& default_slots() {
  static auto& slots = *new std::array<Slot, 64>;
  return slots;
}

constexpr Bytes kLargestSize = PY_SSIZE_T_MAX;  // the core treats larger requests alike

std::optional<Bytes> size_from(PyObject* given) {
  if (PyBool_Check(given)) return std::nullopt;
  const Py_ssize_t size =
      PyLong_CheckExact(given) ? PyLong_AsSsize_t(given) : PyNumber_AsSsize_t(given, PyExc_OverflowError);
  if (size >= 0) return static_cast<Bytes>(size);
  PyErr_Clear();
  return std::nullopt;
}

std::optional<cu::Stream> stream_for(const Source& source) {
  if (source.is_simulated && cupy::has_no_runtime()) return cu::Stream{};
  return cupy::current_stream(source.device);
}

// Whether the memory is on CuPy's current device, as far as that is known without a runtime.
bool is_for_current_device(const Source& source) {
  if (source.is_simulated && cupy::has_no_runtime()) return true;
  const std::optional<int> device = cupy::current_device();
  return device ? *device == source.device : source.is_simulated;
}

enum class Serves { kOneDevice, kCurrentDevice };

// CuPy's current stream, if it may be given memory of the source; nothing if Python has to find that out.
[[gnu::always_inline]] inline std::optional<cu::Stream> cupy_stream(const Source& source, Serves serves) {
  if (!source.core || (source.is_simulated && !cupy::may_simulate())) return std::nullopt;
  if (serves == Serves::kOneDevice && !is_for_current_device(source)) return std::nullopt;
  return stream_for(source);
}

// Null without an exception if it is not a hit.
PyObject* malloc_quickly(Slot& slot, PyObject* given, Serves serves) {
  try {
    const std::optional<Bytes> size = size_from(given);
    if (!size || !cupy::is_unhooked()) return nullptr;
    Source source = slot.get();
    if (source.watched == Watched::kAll) return nullptr;
    const std::optional<cu::Stream> stream = cupy_stream(source, serves);
    if (!stream) return nullptr;
    Block* block = source.core->try_allocate(*size, *stream, lines::current(Framework::kCupy));
    if (block == nullptr) return nullptr;
    PyObject* made = cupy::new_pointer(std::move(source.core), *block, *size, source.device);
    if (made == nullptr) PyErr_Clear();
    return made;
  } catch (const std::exception&) {  // the slow path will report it
    return nullptr;
  }
}

// A stream as an argument. The object's own code may raise.
struct StreamArgument {
  cu::Stream stream = nullptr;
  PyObject* object = nullptr;  // null for a number, and for a default stream
};

std::optional<StreamArgument> stream_argument(PyObject* given) {
  const std::optional<cu::Stream> stream = read_stream(given);
  if (!stream) return std::nullopt;
  return StreamArgument{.stream = *stream, .object = is_default(*stream) ? nullptr : given};
}

// Asks CuPy for the object of its current stream, which keeps the stream alive, unless it is a default stream.
PyObject* malloc_missed_on(const Source& source, PyObject* pool, Bytes size, cu::Stream stream) {
  py::object object;
  StreamArgument argument{.stream = stream};
  if (!is_default(stream)) {
    object = cupy::current_stream_object(source.device);
    const std::optional<StreamArgument> found = stream_argument(object.ptr());
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (found) argument = *found;
  }
  const Wanted wanted{
      .size = size, .stream = argument.stream, .stream_object = argument.object, .framework = Framework::kCupy};
  return allocate_slowly(source, pool, wanted, Product::kCupyPointer);
}

// `pool` is null for the default arena.
[[gnu::noinline]] PyObject* malloc_missed(Slot& slot, PyObject* pool, PyObject* given, Serves serves) {
  try {
    const std::optional<Bytes> size = size_from(given);
    if (size && cupy::is_unhooked()) {
      const Source source = slot.get();
      if (const std::optional<cu::Stream> stream = cupy_stream(source, serves)) {
        return malloc_missed_on(source, pool, *size, *stream);
      }
    }
  } catch (const std::exception&) {
    raise_thrown();
    return nullptr;
  }
  return cupy::malloc_by_python(pool, given);
}

struct Allocator {
  PyObject_HEAD Slot slot;
};

PyTypeObject* allocator_type = nullptr;  // from when the module is imported

Slot& slot_of(PyObject* self) { return reinterpret_cast<Allocator*>(self)->slot; }

PyObject* allocator_malloc(PyObject* self, PyObject* size) {
  if (!cupy::is_connected()) return cupy::malloc_by_python(self, size);
  if (PyObject* made = malloc_quickly(slot_of(self), size, Serves::kOneDevice)) return made;
  return malloc_missed(slot_of(self), self, size, Serves::kOneDevice);
}

// In a function of its own, so that the path for a number stays short.
[[gnu::noinline]] std::optional<Wanted> wanted_on_object(Bytes size, PyObject* given) {
  const std::optional<StreamArgument> argument = stream_argument(given);
  if (!argument) return std::nullopt;
  return Wanted{.size = size, .stream = argument->stream, .stream_object = argument->object};
}

// The arguments of allocate(); nothing if they are unusual, or wrong. Raises what the stream's own code raises.
std::optional<Wanted> wanted_by(PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  if (names != nullptr && PyTuple_GET_SIZE(names) > 0) {
    if (count != 1 || PyTuple_GET_SIZE(names) != 1) return std::nullopt;
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "stream") != 0) return std::nullopt;
    count = 2;
  }
  if (count < 1 || count > 2 || !PyLong_CheckExact(arguments[0])) return std::nullopt;
  const std::optional<Bytes> size = size_from(arguments[0]);
  if (!size) return std::nullopt;
  if (count == 1) return Wanted{.size = *size};
  PyObject* given = arguments[1];
  if (!PyLong_CheckExact(given)) return wanted_on_object(*size, given);
  const auto stream = PyLong_AsUnsignedLongLong(given);
  if (stream != ~0ULL || PyErr_Occurred() == nullptr) {
    return Wanted{.size = *size, .stream = reinterpret_cast<cu::Stream>(stream)};
  }
  PyErr_Clear();
  return std::nullopt;
}

// Null without an exception if it is not a hit.
PyObject* allocate_quickly(Slot& slot, const Wanted& wanted) {
  try {
    Source source = slot.get();
    if (!source.core || source.watched != Watched::kNone || wanted.any_stream) return nullptr;
    const Line line = lines::current(wanted.framework);
    Block* block = wanted.stream_object == nullptr
                       ? source.core->try_allocate(wanted.size, wanted.stream, line)
                       : source.core->try_allocate(wanted.size, wanted.stream, wanted.stream_object, line);
    if (block == nullptr) return nullptr;
    PyObject* made = buffers::new_buffer(std::move(source.core), *block, wanted.size, source.device);
    if (made == nullptr) PyErr_Clear();
    return made;
  } catch (const std::exception&) {  // the slow path will report it
    return nullptr;
  }
}

// Who asks, and for what.
struct Client {
  Framework framework = Framework::kNone;
  Product product = Product::kBuffer;
  bool any_stream = false;  // as in AllocateOptions
};

// Unusual arguments, read by a method of arena.Arena that returns (size, number of the stream, its object or None).
[[gnu::noinline]] PyObject* allocate_parsed(PyObject* self, const py::tuple& parsed, const Client& client) {
  const py::int_ exact = parsed[0];
  const py::object object = parsed[2];
  const std::optional<Bytes> size = size_from(exact.ptr());
  const auto stream = reinterpret_cast<cu::Stream>(parsed[1].cast<std::uint64_t>());
  const Wanted wanted{.size = size.value_or(kLargestSize),
                      .stream = stream,
                      .stream_object = object.is_none() || is_default(stream) ? nullptr : object.ptr(),
                      .huge_size = size ? nullptr : exact.ptr(),
                      .framework = client.framework,
                      .any_stream = client.any_stream};
  return allocate_slowly(slot_of(self).get(), self, wanted, client.product);
}

[[gnu::noinline]] PyObject* allocate_unusual(PyObject* self, PyObject* const* arguments, Py_ssize_t count,
                                             PyObject* names, const Client& client) {
  try {
    const auto parse = py::reinterpret_steal<py::object>(PyObject_GetAttrString(self, "_parse_request"));
    if (!parse) return nullptr;
    const auto parsed = py::reinterpret_steal<py::tuple>(
        PyObject_Vectorcall(parse.ptr(), arguments, static_cast<std::size_t>(count), names));
    if (!parsed) return nullptr;
    return allocate_parsed(self, parsed, client);
  } catch (const std::exception&) {
    raise_thrown();
    return nullptr;
  }
}

[[gnu::always_inline]] inline PyObject* allocate_buffer(PyObject* self, PyObject* const* arguments, Py_ssize_t count,
                                                        PyObject* names, const Client& client) {
  std::optional<Wanted> wanted = wanted_by(arguments, count, names);
  if (wanted) {
    wanted->framework = client.framework;
    wanted->any_stream = client.any_stream;
    if (PyObject* made = allocate_quickly(slot_of(self), *wanted)) return made;
    return allocate_slowly(slot_of(self).get(), self, *wanted, client.product);
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  return allocate_unusual(self, arguments, count, names, client);
}

PyObject* allocator_allocate(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  return allocate_buffer(self, arguments, count, names, {});
}

// For adapters written in Python: allocate() with the framework's name before its arguments. A stream of None means that any
// stream may use the memory.
PyObject* allocate_for(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 1) {
    PyErr_SetString(PyExc_TypeError, "_allocate_for() takes the name of a framework");
    return nullptr;
  }
  try {
    const auto name = py::cast<std::string>(py::handle(arguments[0]));
    const bool any_stream = count == 3 && arguments[2] == Py_None;
    const Client client{.framework = lines::framework_named(name), .any_stream = any_stream};
    return allocate_buffer(self, arguments + 1, any_stream ? 1 : count - 1, nullptr, client);
  } catch (const std::exception&) {
    raise_thrown();
    return nullptr;
  }
}

// For arena._cupy.bridge, where malloc() could not do it alone.
PyObject* allocate_for_cupy(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  return allocate_unusual(self, arguments, count, nullptr,
                          {.framework = Framework::kCupy, .product = Product::kCupyPointer});
}

void set_watched(PyObject* self, Watched watched) {
  Source source = slot_of(self).get();
  if (!source.core) return;
  source.watched = std::max(source.watched, watched);
  for (Slot& slot : default_slots()) {
    if (slot.get().core == source.core) slot.set(source);
  }
  slot_of(self).set(source);
  torch::set_watched(*source.core, source.watched);
}

PyObject* watch_misses(PyObject* self, PyObject*) {
  set_watched(self, Watched::kMisses);
  Py_RETURN_NONE;
}

PyObject* watch_all(PyObject* self, PyObject*) {
  set_watched(self, Watched::kAll);
  Py_RETURN_NONE;
}

PyObject* attach(PyObject* self, PyObject* arguments, PyObject* keywords) {
  static const char* const names[] = {"core", "device", "is_simulated", "is_auto_compact", "expects_virtual_memory",
                                      nullptr};
  PyObject* core = nullptr;
  int device = 0, is_simulated = 0, is_auto_compact = 0, expects_virtual_memory = 0;
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "O$ippp", const_cast<char**>(names), &core, &device,
                                  &is_simulated, &is_auto_compact, &expects_virtual_memory) == 0) {
    return nullptr;
  }
  try {
    slot_of(self).set({.core = py::cast<std::shared_ptr<Arena>>(py::handle(core)),
                       .device = device,
                       .is_simulated = is_simulated != 0,
                       .is_auto_compact = is_auto_compact != 0,
                       .expects_virtual_memory = expects_virtual_memory != 0});
  } catch (const py::cast_error&) {
    PyErr_SetString(PyExc_TypeError, "_attach takes the core of an arena");
    return nullptr;
  }
  Py_RETURN_NONE;
}

void detach_core(PyObject* self) {
  const Source source = slot_of(self).get();
  if (!source.core) return;
  slot_of(self).forget(source.core);
  for (Slot& slot : default_slots()) slot.forget(source.core);
}

PyObject* detach(PyObject* self, PyObject*) {
  detach_core(self);
  Py_RETURN_NONE;
}

PyObject* allocator_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  new (&slot_of(self)) Slot;
  return self;
}

void allocator_dealloc(PyObject* self) {
  detach_core(self);
  slot_of(self).~Slot();
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// Methods have several signatures, which the C API casts to one.
template <typename Function>
PyCFunction function_of(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyObject* new_allocator_type() {
  static char doc[] = "The base class of arena.Arena, which gives it allocate() and malloc().";
  static PyMethodDef methods[] = {
      {"allocate", function_of(&allocator_allocate), METH_FASTCALL | METH_KEYWORDS,
       "allocate($self, size, stream=0)\n--\n\n"
       "Return a buffer of ``size`` bytes, or of a size such as ``\"200MiB\"``, for use on a stream.\n\n"
       "Raises :class:`OutOfMemoryError`.\n\n"
       "A stream is a number, 0 for the default stream, or an object that has one, such as CuPy's or cuda-core's."},
      {"malloc", &allocator_malloc, METH_O,
       "malloc($self, size, /)\n--\n\n"
       "Return memory for CuPy: ``cupy.cuda.set_allocator(pool.malloc)``.\n\n"
       "It is used on CuPy's current stream. An array and its views keep the memory, and give it back when the last\n"
       "of them is gone."},
      {"_allocate_for", function_of(&allocate_for), METH_FASTCALL,
       "_allocate_for($self, framework, size, stream=0, /)\n--\n\n"
       "Return a buffer for a framework, one of FRAMEWORKS. With stream=None, any stream may use it."},
      {"_allocate_for_cupy", function_of(&allocate_for_cupy), METH_FASTCALL,
       "_allocate_for_cupy($self, size, stream, /)\n--\n\n"
       "Return memory as CuPy's MemoryPointer; as a Buffer, if CuPy's types are not as expected."},
      {"_attach", function_of(&attach), METH_VARARGS | METH_KEYWORDS,
       "_attach($self, core, *, device, is_simulated, is_auto_compact, expects_virtual_memory)\n--\n\n"
       "Set where memory comes from."},
      {"_detach", &detach, METH_NOARGS, "_detach($self, /)\n--\n\nGive out no more memory."},
      {"_watch_misses", &watch_misses, METH_NOARGS,
       "_watch_misses($self, /)\n--\n\n"
       "Call _rearm_pressure() and _fire_pressure() around each allocate(), and each malloc() that is a miss."},
      {"_watch_all", &watch_all, METH_NOARGS,
       "_watch_all($self, /)\n--\n\nCall _rearm_pressure() and _fire_pressure() around each request."},
      {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(&allocator_new)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(&allocator_dealloc)},
                                {Py_tp_methods, methods},
                                {Py_tp_doc, doc},
                                {0, nullptr}};
  static PyType_Spec spec = {"arena._core.Allocator", sizeof(Allocator), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                             slots};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  return type;
}

Slot* current_slot() {
  if (!cupy::is_connected()) return nullptr;
  const std::optional<int> device = cupy::has_no_runtime() ? 0 : cupy::current_device();
  if (!device || static_cast<std::size_t>(*device) >= default_slots().size()) return nullptr;
  return &default_slots()[static_cast<std::size_t>(*device)];
}

PyObject* malloc_by_default(PyObject*, PyObject* size) {
  Slot* slot = current_slot();
  if (slot == nullptr) return cupy::malloc_by_python(nullptr, size);
  if (PyObject* made = malloc_quickly(*slot, size, Serves::kCurrentDevice)) return made;
  return malloc_missed(*slot, nullptr, size, Serves::kCurrentDevice);
}

PyObject* new_malloc() {
  static PyMethodDef definition = {"malloc", &malloc_by_default, METH_O,
                                   "malloc(size, /)\n--\n\n"
                                   "Return memory for CuPy from the default arena of its current device.\n\n"
                                   "``cupy.cuda.set_allocator(arena.malloc)`` is all that a program needs."};
  PyObject* made = PyCFunction_NewEx(&definition, nullptr, py::str("arena").ptr());
  if (made == nullptr) throw py::error_already_set();
  return made;
}

}  // namespace

Source source_of(PyObject* pool) {
  if (allocator_type == nullptr || PyObject_TypeCheck(pool, allocator_type) == 0) {
    throw py::type_error("an arena.Arena is needed");
  }
  const Source source = slot_of(pool).get();
  if (!source.core) throw_closed();
  return source;
}

void bind_allocator(py::module_& module) {
  const auto type = py::reinterpret_steal<py::object>(new_allocator_type());
  allocator_type = reinterpret_cast<PyTypeObject*>(type.ptr());
  module.attr("Allocator") = type;
  module.attr("malloc") = py::reinterpret_steal<py::object>(new_malloc());
  module.def(
      "set_default",
      [](std::size_t device, const py::object& allocator) {
        if (device < default_slots().size()) default_slots()[device].set(source_of(allocator.ptr()));
      },
      py::arg("device"), py::arg("allocator"),
      "Set the arena that arena.malloc uses for a device, until it is closed.");
}

}  // namespace arena
