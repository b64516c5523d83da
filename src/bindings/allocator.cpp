// The functions that programs call for memory: `allocate` and `malloc` of every arena.Arena, and arena.malloc. They are plain
// functions of the C API, because they are called for every array. The quick path serves hits. Everything else, errors
// included, is left to the slow path (slow_path.hpp), and unusual arguments to Python.
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
#include "core/arena/trimming.hpp"

namespace py = pybind11;

namespace arena {
namespace {

using lines::Framework;

// A reference that one thread may remove while another allocates.
#ifdef Py_GIL_DISABLED
// Threads use copies of it, each with a lock and a reference count of its own: shared ones would bounce between processors.
class Slot {
 public:
  PoolRef get() {
    thread_local const std::size_t mine = next_++ % kCopies;
    Copy& copy = copies_[mine];
    const Guard guard(copy.mutex);
    return copy.state;
  }
  void set(const PoolRef& state) {
    for (Copy& copy : copies_) {
      PoolRef other = state ? counted_apart(state) : PoolRef{};
      const Guard guard(copy.mutex);
      std::swap(copy.state, other);
    }  // the previous one is dropped after the guard
  }
  void forget(const PoolState* state) {
    for (Copy& copy : copies_) {
      PoolRef other;
      const Guard guard(copy.mutex);
      if (copy.state.get() == state) std::swap(copy.state, other);
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
    PoolRef state;
  };
  struct alignas(kLine) Owner {
    PoolRef state;
  };
  static PoolRef counted_apart(const PoolRef& state) {
    return PoolRef(std::make_shared<Owner>(Owner{state->shared_from_this()}), state.get());
  }

  static inline std::atomic<std::size_t> next_{0};
  std::vector<Copy> copies_ = std::vector<Copy>(kCopies);  // not inline: Python's objects need not be aligned to a line
};
#else
class Slot {
 public:
  const PoolRef& get() const { return state_; }
  void set(PoolRef state) { std::swap(state_, state); }  // the previous one is dropped when the slot no longer has it
  void forget(const PoolState* state) {
    if (state_.get() == state) set({});
  }

 private:
  PoolRef state_;
};
#endif

std::shared_ptr<PoolState> shared(const PoolRef& state) { return state ? state->shared_from_this() : nullptr; }

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

// The same for the quick path; negative if it is none.
[[gnu::always_inline]] inline Py_ssize_t quick_size_from(PyObject* given) {
  if (PyLong_CheckExact(given)) return PyLong_AsSsize_t(given);
  const std::optional<Bytes> size = size_from(given);
  return size ? static_cast<Py_ssize_t>(*size) : -1;
}

enum class Serves { kOneDevice, kCurrentDevice };

// CuPy's current stream, if it may be given memory of the arena. False if Python has to find that out. No std::optional here, nor
// below it: a hit would spend a good part of its time on passing them through memory.
[[gnu::always_inline]] inline bool find_cupy_stream(const PoolState& state, Serves serves, cu::Stream& stream) {
  if (state.is_simulated) {
    if (!cupy::may_simulate()) return false;
    if (cupy::has_no_runtime()) {
      stream = nullptr;
      return true;
    }
  }
  if (serves == Serves::kOneDevice) {
    const int device = cupy::current_device();
    if (device < 0 ? !state.is_simulated : device != state.device) return false;
  }
  return cupy::find_current_stream(state.device, stream);
}

// Null without an exception if it is not a hit.
[[gnu::always_inline]] inline PyObject* malloc_quickly(Slot& slot, PyObject* given, Serves serves) {
  try {
    const Py_ssize_t size = quick_size_from(given);
    if (size < 0) {
      PyErr_Clear();
      return nullptr;
    }
    if (!cupy::is_unhooked()) return nullptr;
    PoolRef state = slot.get();
    cu::Stream stream = nullptr;
    if (!state || !find_cupy_stream(*state, serves, stream) || state->watched() == Watched::kAll) return nullptr;
    Block* block = state->core->try_allocate(static_cast<Bytes>(size), stream, lines::current(Framework::kCupy));
    if (block == nullptr) return nullptr;
    PyObject* made = cupy::new_pointer(std::move(state), *block);
    if (made == nullptr) PyErr_Clear();
    return made;
  } catch (const std::exception&) {  // the slow path will report it
    return nullptr;
  }
}

// A request on a stream given as an object; nothing if it is none. The object's own code may raise.
std::optional<PythonRequest> request_on_object(const Request& request, PyObject* given) {
  const std::optional<cu::Stream> stream = read_stream(given);
  if (!stream) return std::nullopt;
  PythonRequest made{.request = request, .stream_object = is_default(*stream) ? nullptr : given};
  made.request.stream = *stream;
  return made;
}

// Asks CuPy for the object of its current stream, which keeps the stream alive, unless it is a default stream.
PyObject* malloc_missed_on(const PoolRef& state, PyObject* pool, Bytes size, cu::Stream stream) {
  py::object object;
  PythonRequest wanted{.request = {.size = size, .stream = stream, .line = lines::current(Framework::kCupy)}};
  if (!is_default(stream)) {
    object = cupy::current_stream_object(state->device);
    const std::optional<PythonRequest> found = request_on_object(wanted.request, object.ptr());
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (found) wanted = *found;
  }
  wanted.product = Product::kCupyPointer;
  return allocate_slowly(shared(state), pool, wanted);
}

// `pool` is null for the default arena.
[[gnu::noinline]] PyObject* malloc_missed(Slot& slot, PyObject* pool, PyObject* given, Serves serves) {
  try {
    const std::optional<Bytes> size = size_from(given);
    if (size && cupy::is_unhooked()) {
      const PoolRef state = slot.get();
      cu::Stream stream = nullptr;
      if (state && find_cupy_stream(*state, serves, stream)) return malloc_missed_on(state, pool, *size, stream);
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
[[gnu::noinline]] std::optional<PythonRequest> with_object(const Request& request, PyObject* given) {
  return request_on_object(request, given);
}

// Adds the arguments of allocate() to a request; nothing if they are unusual, or wrong. Raises what the stream's own code raises.
std::optional<PythonRequest> with_arguments(Request request, PyObject* const* arguments, Py_ssize_t count,
                                            PyObject* names) {
  if (names != nullptr && PyTuple_GET_SIZE(names) > 0) {
    if (count != 1 || PyTuple_GET_SIZE(names) != 1) return std::nullopt;
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "stream") != 0) return std::nullopt;
    count = 2;
  }
  if (count < 1 || count > 2 || !PyLong_CheckExact(arguments[0])) return std::nullopt;
  const std::optional<Bytes> size = size_from(arguments[0]);
  if (!size) return std::nullopt;
  request.size = *size;
  if (count == 1) return PythonRequest{.request = request};
  PyObject* given = arguments[1];
  if (!PyLong_CheckExact(given)) return with_object(request, given);
  const std::optional<cu::Stream> stream = read_stream_number(given);
  if (!stream) return std::nullopt;
  request.stream = *stream;
  return PythonRequest{.request = request};
}

// Null without an exception if it is not a hit.
PyObject* allocate_quickly(Slot& slot, const PythonRequest& wanted) {
  try {
    PoolRef state = slot.get();
    const Request& request = wanted.request;
    if (!state || state->watched() != Watched::kNone || request.any_stream) return nullptr;
    Arena& core = *state->core;
    Block* block = wanted.stream_object == nullptr
                       ? core.try_allocate(request.size, request.stream, request.line)
                       : core.try_allocate(request.size, request.stream, wanted.stream_object, request.line);
    if (block == nullptr) return nullptr;
    PyObject* made = buffers::new_buffer(std::move(state), *block, request.size);
    if (made == nullptr) PyErr_Clear();
    return made;
  } catch (const std::exception&) {  // the slow path will report it
    return nullptr;
  }
}

// Unusual arguments, read by a method of arena.Arena that returns (size, number of the stream, its object or None).
[[gnu::noinline]] PyObject* allocate_parsed(PyObject* self, const py::tuple& parsed, const Request& asked,
                                            Product product) {
  const py::int_ exact = parsed[0];
  const py::object object = parsed[2];
  const std::optional<Bytes> size = size_from(exact.ptr());
  Request request = asked;
  request.size = size.value_or(kLargestSize);
  request.stream = reinterpret_cast<cu::Stream>(parsed[1].cast<std::uint64_t>());
  return allocate_slowly(shared(slot_of(self).get()), self,
                         {.request = request,
                          .stream_object = object.is_none() || is_default(request.stream) ? nullptr : object.ptr(),
                          .huge_size = size ? nullptr : exact.ptr(),
                          .product = product});
}

[[gnu::noinline]] PyObject* allocate_unusual(PyObject* self, PyObject* const* arguments, Py_ssize_t count,
                                             PyObject* names, const Request& asked, Product product) {
  try {
    const auto parse = py::reinterpret_steal<py::object>(PyObject_GetAttrString(self, "_parse_request"));
    if (!parse) return nullptr;
    const auto parsed = py::reinterpret_steal<py::tuple>(
        PyObject_Vectorcall(parse.ptr(), arguments, static_cast<std::size_t>(count), names));
    if (!parsed) return nullptr;
    return allocate_parsed(self, parsed, asked, product);
  } catch (const std::exception&) {
    raise_thrown();
    return nullptr;
  }
}

// `asked` has who asks, and whether for any stream.
[[gnu::always_inline]] inline PyObject* allocate_buffer(PyObject* self, PyObject* const* arguments, Py_ssize_t count,
                                                        PyObject* names, const Request& asked) {
  if (const std::optional<PythonRequest> wanted = with_arguments(asked, arguments, count, names)) {
    if (PyObject* made = allocate_quickly(slot_of(self), *wanted)) return made;
    return allocate_slowly(shared(slot_of(self).get()), self, *wanted);
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  return allocate_unusual(self, arguments, count, names, asked, Product::kBuffer);
}

PyObject* allocator_allocate(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  try {
    return allocate_buffer(self, arguments, count, names, {.line = lines::current(Framework::kNone)});
  } catch (const std::exception&) {
    raise_thrown();
    return nullptr;
  }
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
    const Request asked{.line = lines::current(lines::framework_named(name)), .any_stream = any_stream};
    return allocate_buffer(self, arguments + 1, any_stream ? 1 : count - 1, nullptr, asked);
  } catch (const std::exception&) {
    raise_thrown();
    return nullptr;
  }
}

// For arena._cupy.bridge, where malloc() could not do it alone.
PyObject* allocate_for_cupy(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  try {
    const Request asked{.line = lines::current(Framework::kCupy)};
    return allocate_unusual(self, arguments, count, nullptr, asked, Product::kCupyPointer);
  } catch (const std::exception&) {
    raise_thrown();
    return nullptr;
  }
}

PyObject* attach(PyObject* self, PyObject* state) {
  try {
    slot_of(self).set(py::cast<std::shared_ptr<PoolState>>(py::handle(state)));
  } catch (const py::cast_error&) {
    PyErr_SetString(PyExc_TypeError, "_attach takes a PoolState");
    return nullptr;
  }
  Py_RETURN_NONE;
}

void detach_state(PyObject* self) {
  const PoolRef state = slot_of(self).get();
  if (!state) return;
  slot_of(self).forget(state.get());
  for (Slot& slot : default_slots()) slot.forget(state.get());
}

PyObject* detach(PyObject* self, PyObject*) {
  detach_state(self);
  Py_RETURN_NONE;
}

PyObject* allocator_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  new (&slot_of(self)) Slot;
  return self;
}

void allocator_dealloc(PyObject* self) {
  detach_state(self);
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
      {"_attach", &attach, METH_O, "_attach($self, state, /)\n--\n\nGive out memory from now on."},
      {"_detach", &detach, METH_NOARGS, "_detach($self, /)\n--\n\nGive out no more memory."},
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
  const int device = cupy::has_no_runtime() ? 0 : cupy::current_device();
  if (device < 0 || static_cast<std::size_t>(device) >= default_slots().size()) return nullptr;
  return &default_slots()[static_cast<std::size_t>(device)];
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

std::shared_ptr<PoolState> pool_state_of(PyObject* pool) {
  if (allocator_type == nullptr || PyObject_TypeCheck(pool, allocator_type) == 0) {
    throw py::type_error("an arena.Arena is needed");
  }
  std::shared_ptr<PoolState> state = shared(slot_of(pool).get());
  if (!state) throw_closed();
  return state;
}

void bind_allocator(py::module_& module) {
  const auto type = py::reinterpret_steal<py::object>(new_allocator_type());
  allocator_type = reinterpret_cast<PyTypeObject*>(type.ptr());
  module.attr("Allocator") = type;
  module.attr("malloc") = py::reinterpret_steal<py::object>(new_malloc());
  module.def(
      "set_default",
      [](std::size_t device, const py::object& allocator) {
        if (device < default_slots().size()) default_slots()[device].set(pool_state_of(allocator.ptr()));
      },
      py::arg("device"), py::arg("allocator"),
      "Set the arena that arena.malloc uses for a device, until it is closed.");
}

}  // namespace arena
