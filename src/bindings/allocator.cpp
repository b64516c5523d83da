// What is called for memory: `allocate` of every arena.Arena, and by CuPy its `malloc`, and arena.malloc. Plain functions
// of the C API, because they are called for every array. They do what is quick, a block that is there already. All else,
// errors included, is done by the Python method or function of the same purpose.
#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "bindings/buffer.hpp"
#include "bindings/cupy.hpp"
#include "bindings/hooks.hpp"
#include "bindings/lines.hpp"
#include "bindings/stream_argument.hpp"

namespace py = pybind11;

namespace arena {
namespace {

struct Source {
  std::shared_ptr<Arena> core;  // null while there is none: before the arena is made, and after it was closed
  int device = 0;
  bool is_simulated = false;
  bool is_watched = false;  // somebody wants to know of every malloc, too
};

// A source that one thread may take away while another allocates.
#ifdef Py_GIL_DISABLED
// Threads have copies of it, each with a lock and a count of owners of its own: if they shared those, they would spend
// their time on handing them to each other.
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
    }  // what was there, if it is the last of it, ends without the guard
  }
  void forget(const std::shared_ptr<Arena>& core) {
    for (Copy& copy : copies_) {
      Source other;
      const Guard guard(copy.mutex);
      if (copy.source.core == core) std::swap(copy.source, other);
    }
  }

 private:
  static constexpr std::size_t kCopies = 16, kLine = 64;  // bytes that a processor has, or has not, for itself
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
    const auto owner = std::make_shared<Owner>(Owner{source.core});
    return {std::shared_ptr<Arena>(owner, source.core.get()), source.device, source.is_simulated, source.is_watched};
  }

  static inline std::atomic<std::size_t> next_{0};
  std::vector<Copy> copies_ = std::vector<Copy>(kCopies);  // elsewhere: Python's objects may begin within a line
};
#else
class Slot {
 public:
  const Source& get() const { return source_; }
  void set(Source source) { std::swap(source_, source); }  // what ends, ends when it is no longer in here
  void forget(const std::shared_ptr<Arena>& core) {
    if (source_.core == core) set({});
  }

 private:
  Source source_;
};
#endif

// The default arenas by device. Never destroyed: they are emptied by those whose they are.
std::array<Slot, 64>& default_slots() {
  static auto& slots = *new std::array<Slot, 64>;
  return slots;
}

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

// Whether the memory is for CuPy's current device, as far as that can be told without a runtime.
bool is_for_current_device(const Source& source) {
  if (source.is_simulated && cupy::has_no_runtime()) return true;
  const std::optional<int> device = cupy::current_device();
  return device ? *device == source.device : source.is_simulated;
}

enum class Serves { kOneDevice, kCurrentDevice };
enum class Watched { kLeft, kTaken };  // what is asked of an arena that is watched

// Null without an error when it is not a matter of taking what is there.
template <Watched watched = Watched::kLeft>
PyObject* malloc_quickly(Slot& slot, PyObject* given, Serves serves) {
  try {
    const std::optional<Bytes> size = size_from(given);
    if (!size || !cupy::is_unhooked()) return nullptr;
    Source source = slot.get();
    if (!source.core || (source.is_simulated && !cupy::may_simulate())) return nullptr;
    if (source.is_watched && watched == Watched::kLeft) return nullptr;
    if (serves == Serves::kOneDevice && !is_for_current_device(source)) return nullptr;
    const std::optional<cu::Stream> stream = stream_for(source);
    if (!stream) return nullptr;
    Block* block = source.core->try_allocate(*size, *stream, lines::current());
    if (block == nullptr) return nullptr;
    PyObject* made = cupy::new_pointer(std::move(source.core), *block, *size, source.device);
    if (made == nullptr) PyErr_Clear();
    return made;
  } catch (const std::exception&) {  // it will come again where it can be told
    return nullptr;
  }
}

// Tells the arena of a request, before or after; false with an error set if a callback was interrupted.
bool notice(std::uint64_t arena, PyObject* is_before) {
  PyObject* module = PyImport_ImportModule("arena._pool.registry");
  PyObject* done = module != nullptr ? PyObject_CallMethod(module, "notice_pressure", "KO",
                                                           static_cast<unsigned long long>(arena), is_before)
                                     : nullptr;
  Py_XDECREF(module);
  Py_XDECREF(done);
  return done != nullptr;
}

// What malloc does if it was not quick: it may be, of an arena that is watched.
[[gnu::noinline]] PyObject* malloc_watched(Slot& slot, PyObject* pool, PyObject* size, Serves serves) {
  const Source source = slot.get();
  if (!source.core || !source.is_watched) return cupy::malloc_slowly(pool, size);
  const std::uint64_t arena = source.core->id();
  if (!notice(arena, Py_True)) return nullptr;
  PyObject* made = malloc_quickly<Watched::kTaken>(slot, size, serves);
  if (made == nullptr) return cupy::malloc_slowly(pool, size);  // which tells it itself
  if (notice(arena, Py_False)) return made;
  Py_DECREF(made);
  return nullptr;
}

struct Allocator {
  PyObject_HEAD Slot slot;
  std::atomic<bool> is_watched;  // somebody wants to know of every allocate()
};

Slot& slot_of(PyObject* self) { return reinterpret_cast<Allocator*>(self)->slot; }

PyObject* allocator_malloc(PyObject* self, PyObject* size) {
  if (!cupy::is_connected()) return cupy::malloc_slowly(self, size);
  if (PyObject* made = malloc_quickly(slot_of(self), size, Serves::kOneDevice)) return made;
  return malloc_watched(slot_of(self), self, size, Serves::kOneDevice);
}

struct Wanted {
  Bytes size;
  cu::Stream stream;
  PyObject* owner;  // of the stream; null for a number, and for a default stream
};

// Apart from the rest, which is to be short for a number.
[[gnu::noinline]] std::optional<Wanted> wanted_on_object(Bytes size, PyObject* given) {
  const std::optional<cu::Stream> stream = read_stream(given);
  if (!stream) return std::nullopt;
  return Wanted{size, *stream, is_default(*stream) ? nullptr : given};
}

// What allocate() is asked for; nothing if that takes more than a look. Raises what the stream's own code raises.
std::optional<Wanted> wanted_by(PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  if (names != nullptr && PyTuple_GET_SIZE(names) > 0) {
    if (count != 1 || PyTuple_GET_SIZE(names) != 1) return std::nullopt;
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "stream") != 0) return std::nullopt;
    count = 2;
  }
  if (count < 1 || count > 2 || !PyLong_CheckExact(arguments[0])) return std::nullopt;
  const std::optional<Bytes> size = size_from(arguments[0]);
  if (!size) return std::nullopt;
  if (count == 1) return Wanted{*size, nullptr, nullptr};
  PyObject* given = arguments[1];
  if (!PyLong_CheckExact(given)) return wanted_on_object(*size, given);
  const auto stream = PyLong_AsUnsignedLongLong(given);
  if (stream != ~0ULL || PyErr_Occurred() == nullptr) {
    return Wanted{*size, reinterpret_cast<cu::Stream>(stream), nullptr};
  }
  PyErr_Clear();
  return std::nullopt;
}

// Null without an error when it is not a matter of taking what is there.
PyObject* allocate_quickly(Allocator& allocator, const Wanted& wanted) {
  try {
    if (allocator.is_watched.load(std::memory_order_relaxed)) return nullptr;
    Source source = allocator.slot.get();
    if (!source.core) return nullptr;
    Block* block = wanted.owner == nullptr
                       ? source.core->try_allocate(wanted.size, wanted.stream, lines::current())
                       : source.core->try_allocate(wanted.size, wanted.stream, wanted.owner, lines::current());
    if (block == nullptr) return nullptr;
    PyObject* made = buffers::new_buffer(std::move(source.core), *block, wanted.size, source.device);
    if (made == nullptr) PyErr_Clear();
    return made;
  } catch (const std::exception&) {  // it will come again where it can be told
    return nullptr;
  }
}

PyObject* allocator_allocate(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  if (const std::optional<Wanted> wanted = wanted_by(arguments, count, names)) {
    if (PyObject* made = allocate_quickly(*reinterpret_cast<Allocator*>(self), *wanted)) return made;
  } else if (PyErr_Occurred() != nullptr) {
    return nullptr;
  }
  PyObject* slowly = PyObject_GetAttrString(self, "_allocate_slowly");
  if (slowly == nullptr) return nullptr;
  PyObject* made = PyObject_Vectorcall(slowly, arguments, static_cast<std::size_t>(count), names);
  Py_DECREF(slowly);
  return made;
}

PyObject* watch(PyObject* self, PyObject*) {
  reinterpret_cast<Allocator*>(self)->is_watched = true;
  Py_RETURN_NONE;
}

PyObject* watch_malloc(PyObject* self, PyObject*) {
  Source source = slot_of(self).get();
  if (!source.core) Py_RETURN_NONE;
  source.is_watched = true;
  for (Slot& slot : default_slots()) {
    if (slot.get().core == source.core) slot.set(source);
  }
  slot_of(self).set(source);
  Py_RETURN_NONE;
}

PyObject* give_core(PyObject* self, PyObject* arguments) {
  PyObject* core = nullptr;
  int device = 0, is_simulated = 0;
  if (PyArg_ParseTuple(arguments, "Oip", &core, &device, &is_simulated) == 0) return nullptr;
  try {
    slot_of(self).set({py::cast<std::shared_ptr<Arena>>(py::handle(core)), device, is_simulated != 0, false});
  } catch (const py::cast_error&) {
    PyErr_SetString(PyExc_TypeError, "_give_core takes the core of an arena");
    return nullptr;
  }
  Py_RETURN_NONE;
}

void forget_core(PyObject* self) {
  const Source source = slot_of(self).get();
  if (!source.core) return;
  slot_of(self).forget(source.core);
  for (Slot& slot : default_slots()) slot.forget(source.core);
}

PyObject* take_core(PyObject* self, PyObject*) {
  forget_core(self);
  Py_RETURN_NONE;
}

PyObject* allocator_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  new (&slot_of(self)) Slot;
  new (&reinterpret_cast<Allocator*>(self)->is_watched) std::atomic<bool>(false);
  return self;
}

void allocator_dealloc(PyObject* self) {
  forget_core(self);
  slot_of(self).~Slot();
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* new_allocator_type() {
  static char doc[] = "What arena.Arena gets its malloc from. It has none of its own to give: arena.Arena has.";
  static PyMethodDef methods[] = {
      {"allocate", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&allocator_allocate)),
       METH_FASTCALL | METH_KEYWORDS,
       "allocate($self, size, stream=0)\n--\n\n"
       "Return a buffer of ``size`` bytes, or of a size such as ``\"200MiB\"``, for use on a stream.\n\n"
       "Raises :class:`OutOfMemoryError`.\n\n"
       "A stream is the number of one, 0 for the default stream, or an object that has one: CuPy's or cuda-core's."},
      {"malloc", &allocator_malloc, METH_O,
       "malloc($self, size, /)\n--\n\n"
       "Return memory for CuPy: ``cupy.cuda.set_allocator(pool.malloc)``.\n\n"
       "It is used on CuPy's current stream. An array keeps its memory through its views, and gives it back with the\n"
       "last of them."},
      {"_give_core", &give_core, METH_VARARGS,
       "_give_core($self, core, device, is_simulated, /)\n--\n\nSay where memory comes from."},
      {"_take_core", &take_core, METH_NOARGS, "_take_core($self, /)\n--\n\nSay that no more memory comes."},
      {"_watch_malloc", &watch_malloc, METH_NOARGS,
       "_watch_malloc($self, /)\n--\n\nHave notice_pressure() called before and after every malloc()."},
      {"_watch", &watch, METH_NOARGS, "_watch($self, /)\n--\n\nHave _allocate_slowly() called by every allocate()."},
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
  if (slot == nullptr) return cupy::malloc_slowly(nullptr, size);
  if (PyObject* made = malloc_quickly(*slot, size, Serves::kCurrentDevice)) return made;
  return malloc_watched(*slot, nullptr, size, Serves::kCurrentDevice);
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

void bind_allocator(py::module_& module) {
  intern_stream_names();
  const auto type = py::reinterpret_steal<py::object>(new_allocator_type());
  module.attr("Allocator") = type;
  module.attr("malloc") = py::reinterpret_steal<py::object>(new_malloc());
  module.def(
      "set_default",
      [type = type.ptr()](std::size_t device, const py::object& allocator) {
        if (PyObject_TypeCheck(allocator.ptr(), reinterpret_cast<PyTypeObject*>(type)) == 0) {
          throw py::type_error("set_default takes an Allocator");
        }
        if (device < default_slots().size()) default_slots()[device].set(slot_of(allocator.ptr()).get());
      },
      py::arg("device"), py::arg("allocator"), "Say where arena.malloc gets memory on a device, until it is closed.");
}

}  // namespace arena
