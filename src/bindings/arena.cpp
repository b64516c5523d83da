// The core's Arena for Python. Programs use arena.Arena, which is written in Python on top of this.
#include "core/arena/arena.hpp"

#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <string>

#include "bindings/arenas.hpp"
#include "bindings/bindings.hpp"
#include "bindings/buffer.hpp"
#include "bindings/failure.hpp"
#include "bindings/lines.hpp"
#include "bindings/moving.hpp"
#include "bindings/snapshots.hpp"
#include "trace/recorder.hpp"

namespace py = pybind11;

namespace arena {
namespace {

constexpr std::uint64_t kLeastAlignment = 256;  // of addresses from other allocators

cu::Stream stream_from(std::uint64_t number) { return reinterpret_cast<cu::Stream>(number); }

// One attempt, without moving live data. arena.Arena.allocate() does more: see slow_path.hpp.
py::object allocate(const std::shared_ptr<Arena>& arena, Bytes size, std::uint64_t stream) {
  const Request request{.size = size, .stream = stream_from(stream), .line = lines::current(lines::Framework::kNone)};
  Block* block = nullptr;
  {
    const WithoutGil without_gil;
    block = &arena->allocate(request);
  }
  PyObject* made = buffers::new_buffer(std::make_shared<PoolState>(arena, PoolState::Options{}), *block, size);
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

// A failure is a value, so that Python builds its error once.
std::optional<RequestFailure> reserve(Arena& arena, Bytes size, bool may_move) {
  try {
    const WithoutGil without_gil;
    arena.reserve(size, moving_if(may_move));
    return std::nullopt;
  } catch (const OutOfMemory& error) {
    return RequestFailure{.failure = error.failure()};
  }
}

void free_block(Arena& arena, const py::object& block) {
  if (!py::isinstance<py::int_>(block)) {
    block.attr("free")();
    return;
  }
  const auto address = block.cast<std::uint64_t>();
  const WithoutGil without_gil;
  arena.free(address);
}

std::string repr_of(const py::handle& object) { return py::repr(object).cast<std::string>(); }

// The address that an object from upstream= names. What its own code raises is raised.
std::uint64_t address_in(const py::object& memory, Bytes size) {
  py::object given;
  try {
    given = memory.attr("ptr");
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_AttributeError)) throw;
    throw UsageError("upstream= gave " + repr_of(memory) + ", which has no address in .ptr");
  }
  std::uint64_t address = 0;
  try {
    address = given.cast<std::uint64_t>();
  } catch (const py::cast_error&) {  // not a number: reported below
  }
  if (address == 0 || address % kLeastAlignment != 0) {
    throw UsageError("upstream= gave memory at " + repr_of(given) +
                     ", which is not an address that is a multiple of 256");
  }
  if (size > ~address) {
    throw UsageError("upstream= gave memory at " + repr_of(given) + ", after which there are no " +
                     std::to_string(size) + " bytes");
  }
  return address;
}

// Memory from a function of the user. The object it returns has an address, and is kept until the memory is given back.
PlainSource from_python(py::object function) {
  const std::shared_ptr<PyObject> held(function.release().ptr(), &drop_when_possible);
  return [held](Bytes size) -> std::optional<PlainMemory> {
    if (WithoutPython::is_here()) {
      throw UsageError(
          "upstream= is a Python function, which cannot be called for PyTorch's own allocator; call arena.torch.use() "
          "before the first CUDA tensor, or use an arena without upstream=");
    }
    return with_gil([&]() -> std::optional<PlainMemory> {
      try {
        PyObject* given = PyObject_CallFunction(held.get(), "K", static_cast<unsigned long long>(size));
        if (given == nullptr) throw py::error_already_set();
        auto memory = py::reinterpret_steal<py::object>(given);
        const std::uint64_t address = address_in(memory, size);
        PyObject* owner = memory.release().ptr();
        return PlainMemory{address, [owner] { drop_when_possible(owner); }};
      } catch (py::error_already_set& error) {
        if (!error.matches(PyExc_MemoryError)) throw;
        return std::nullopt;
      }
    });
  };
}

void keep_stream(Arena& arena, std::uint64_t stream, py::object owner) {
  std::shared_ptr<void> held = owner.is_none() ? nullptr : keep_alive(std::move(owner));
  const WithoutGil without_gil;
  arena.keep_stream(stream_from(stream), std::move(held));
}

std::shared_ptr<Arena> make_arena(std::shared_ptr<Driver> driver, int device, ArenaSettings settings,
                                  const py::object& upstream) {
  if (!upstream.is_none()) settings.upstream = from_python(upstream);
  const WithoutGil without_gil;
  const auto end = [](Arena* arena) {
    if (arena->is_inherited()) return;  // everything in it belongs to the parent process
    if (PyGILState_Check() == 0) return delete arena;
    // The destructor waits for the device, which may be running a host function that needs the GIL.
    WithoutGil without_gil;
    delete arena;
  };
  std::shared_ptr<Arena> made(new Arena(std::move(driver), device, std::move(settings)), end);
  arenas::add(made);
  return made;
}

// Fast if the lock is free: the GIL is released only to wait for the lock.
Stats read_stats(Arena& arena, bool may_move) {
  if (const std::optional<Stats> stats = arena.try_stats(moving_if(may_move))) return *stats;
  const WithoutGil without_gil;
  return arena.stats(moving_if(may_move));
}

// A property that takes the lock. Releases the GIL first: the thread that holds the lock may be waiting for the GIL.
template <typename Value>
py::cpp_function locked(Value (Arena::*get)() const) {
  return py::cpp_function(get, py::call_guard<WithoutGil>());
}

py::dict snapshot_of(Arena& arena, bool may_move) {
  const Snapshot snapshot = [&] {
    const WithoutGil without_gil;
    return arena.snapshot(moving_if(may_move));
  }();
  return dict_of(snapshot, steady_now());
}

// The memory of a graph, and its arena.
class Graph {
 public:
  explicit Graph(std::shared_ptr<Arena> arena) : arena_(std::move(arena)), memory_(arena_->begin_graph()) {}
  void end() const { arena_->end_graph(*memory_); }
  void release() const { arena_->release_graph(*memory_); }

 private:
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<GraphMemory> memory_;
};

void bind_graph(py::module_& module) {
  py::class_<Graph>(module, "Graph", "The core of arena.GraphMemory.")
      .def("end", &Graph::end, py::call_guard<WithoutGil>(), "Stop collecting what this thread allocates.")
      .def("release", &Graph::release, py::call_guard<WithoutGil>(),
           "Release the memory: the graph is not launched again.");
}

py::dict scopes_of(const Arena& arena) {
  std::map<std::string, ScopeTotals> paths;
  {
    const WithoutGil without_gil;
    paths = arena.scope_totals();
  }
  py::dict found;
  for (const auto& [path, totals] : paths) {
    found[py::str(path)] = py::make_tuple(totals.live, totals.blocks, totals.peak, totals.entered, totals.budget);
  }
  return found;
}

void bind_scope(py::module_& module) {
  py::class_<Scope, std::shared_ptr<Scope>>(module, "Scope", "The core of arena.Scope.")
      .def_property_readonly("name", &Scope::name, "Its name.")
      .def_property_readonly("first", &Scope::first, "The lowest serial that a block in it can have.")
      .def_property_readonly("path", &Scope::path, "Its name, after those of the scopes around it.")
      .def_property_readonly("budget", &Scope::budget, "The most that may be live in it, if it has a budget.")
      .def_property_readonly("live", &Scope::live, "Live bytes that were allocated in it.")
      .def_property_readonly("peak", &Scope::peak, "The highest value of live so far.")
      .def_property_readonly("blocks", &Scope::blocks, "Live allocations that were made in it.");
}

}  // namespace

void bind_arena(py::module_& module) {
  bind_scope(module);
  bind_graph(module);
  py::class_<Arena, std::shared_ptr<Arena>>(module, "Arena", "The core of arena.Arena.")
      .def(py::init([](std::shared_ptr<Driver> driver, int device, Bytes cap, Bytes reserve, Bytes headroom,
                       Bytes growth, bool vmm, bool moves, Peers peers, const py::object& upstream, bool validates) {
             ArenaSettings settings{.cap = cap,
                                    .reserve = reserve,
                                    .headroom = headroom,
                                    .growth = growth,
                                    .virtual_memory = vmm,
                                    .peers = std::move(peers),
                                    .moves = moves,
                                    .validates = validates,
                                    .upstream = {}};
             py::module_::import("arena._pool.buffer");  // registers the type of buffers; `import arena` does not
             return make_arena(std::move(driver), device, std::move(settings), upstream);
           }),
           py::arg("driver"), py::arg("device"), py::arg("cap"), py::arg("reserve"), py::arg("headroom"),
           py::arg("growth"), py::arg("vmm") = true, py::arg("moves") = false, py::arg("peers") = py::none(),
           py::arg("upstream") = py::none(), py::arg("validates") = false)
      .def("allocate", &allocate, py::arg("size"), py::arg("stream") = 0,
           "A new block, as an arena.Buffer: one attempt, without moving live data.")
      .def("keep_stream", &keep_stream, py::arg("stream"), py::arg("owner"),
           "Keep the owner of a stream until its memory is no longer used. None: the stream is never destroyed.")
      .def("free", &free_block, py::arg("block"), "Give a block back: a Buffer, or the address of a live one.")
      .def(
          "record_stream",
          [](Arena& arena, std::uint64_t address, std::uint64_t stream) {
            arena.record_stream(address, stream_from(stream));
          },
          py::arg("address"), py::arg("stream"), py::call_guard<WithoutGil>(), "Note that a stream also uses a block.")
      .def(
          "begin_graph",
          [](const std::shared_ptr<Arena>& arena) {
            const WithoutGil without_gil;
            return Graph(arena);
          },
          "Collect what this thread allocates from now on for a captured graph.")
      .def("release_graphs", &Arena::release_graphs, py::call_guard<WithoutGil>(),
           "Release the memory of graphs that were captured without begin_graph().")
      .def("pin", &Arena::pin, py::arg("address"), py::call_guard<WithoutGil>(), "Keep the physical memory of a block.")
      .def("unpin", &Arena::unpin, py::arg("address"), py::call_guard<WithoutGil>(), "Undo one pin().")
      .def("close", &Arena::close, py::call_guard<WithoutGil>(), "Allocate no more, and give back what is free.")
      .def("trim", &Arena::trim, py::call_guard<WithoutGil>(), "Return entirely free handles to the device.")
      .def(
          "compact",
          [](Arena& arena, const py::object& may_move) {
            const std::optional<QuiescenceCheck> moment = find_moment(arena, may_move);
            if (moment) arena.compact(*moment);
            return moment.has_value();
          },
          py::arg("may_move"),
          "Give back every granule that no block touches, if live data may be moved now. Holds the GIL.")
      .def("reset_peaks", &Arena::reset_peaks, py::call_guard<WithoutGil>(),
           "Start the peaks in the account again, from what is live and reserved now.")
      .def(
          "highest",
          [](const Arena& arena) {
            const Highest highest = arena.highest();
            return py::make_tuple(highest.live, highest.reserved);
          },
          "The peaks of live and reserved bytes since the beginning, whether or not peaks were reset.")
      .def("needs_safe_point", &Arena::needs_safe_point, "Whether safe_point() would have something to do.")
      .def(
          "safe_point",
          [](Arena& arena, double seconds) {
            return arena.safe_point(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
          },
          py::arg("seconds"), "Move live data until the time is up. Returns the bytes freed. Holds the GIL.")
      .def("synchronize", &Arena::synchronize, py::call_guard<WithoutGil>(), "Wait for the device.")
      .def("reserve", &reserve, py::arg("size"), py::kw_only(), py::arg("may_move"),
           "Reserve at least so much. Returns why that failed, or None.")
      .def("set_cap", &Arena::set_cap, py::arg("cap"), py::call_guard<WithoutGil>(), "Change the cap.")
      .def_property_readonly("id", &Arena::id, "A number that no other arena of the process has.")
      .def_property_readonly("is_plain", &Arena::is_plain, "Whether it works on plain segments.")
      .def_property_readonly("addresses", locked(&Arena::addresses), "Bytes of addresses reserved for virtual memory.")
      .def_property_readonly("peers", locked(&Arena::peers), "The other devices that have access to virtual memory.")
      .def_property_readonly("rdma", locked(&Arena::rdma), "Whether memory is created for GPUDirect RDMA.")
      .def_property_readonly("remark", locked(&Arena::remark), "What is unusual on this device, and why.")
      .def_property_readonly("validates", &Arena::validates, "Whether every operation ends with validate().")
      .def("reserved", &Arena::reserved, py::call_guard<WithoutGil>(),
           "Bytes of physical memory taken from the driver.")
      .def(
          "reserved_so_far",
          [](const Arena& arena) {
            const Arena::Reserved its = [&] {
              const WithoutGil without_gil;
              return arena.reserved_and_peak();
            }();
            return py::make_tuple(its.returned, its.mappings, its.mappings_at_peak);
          },
          "Bytes returned to the driver so far; mappings of handles now, and when most was reserved.")
      .def("live", &Arena::live, py::call_guard<WithoutGil>(), "Bytes in allocations, after rounding.")
      .def("scopes", &scopes_of,
           "All scopes so far, by path: live bytes, live allocations, the peak, how often it was entered, and the last "
           "budget.")
      .def("cap", &Arena::cap, py::call_guard<WithoutGil>(), "The most that may be reserved.")
      .def(
          "enter_scope",
          [](Arena& arena, const std::string& name, std::optional<Bytes> budget) {
            const WithoutGil without_gil;
            return arena.begin_scope(name, budget);
          },
          py::arg("name"), py::arg("budget"), "A new scope for what this thread allocates from now on.")
      .def(
          "observe",
          [](Arena& arena, std::shared_ptr<Recorder> recorder) {
            const WithoutGil without_gil;
            arena.observe(std::move(recorder));
          },
          py::arg("recorder").none(true), "Set the recorder; None stops recording.")
      .def("watch", &Arena::watch, py::arg("watch").none(true), py::call_guard<WithoutGil>(),
           "Set the watch, which keeps the peak and the account over time; None stops that.")
      .def("update_watch", &Arena::update_watch, py::call_guard<WithoutGil>(), "Bring the watch up to this moment.")
      .def("end_scope", &Arena::end_scope, py::arg("scope"), py::call_guard<WithoutGil>(),
           "Stop counting allocations in a scope.")
      .def("snapshot", &snapshot_of, py::arg("may_move") = true, "Everything there is, at one moment.")
      .def("stats", &read_stats, py::arg("may_move") = true, "The account.")
      .def(
          "stats_after_asking",
          [](Arena& arena, bool may_move) { return arena.stats_after_asking(moving_if(may_move)); },
          py::arg("may_move"), py::call_guard<WithoutGil>(),
          "The account, after asking the device what is free and the streams what they have finished.")
      .def("validate", &Arena::validate, py::call_guard<WithoutGil>(), "Check every invariant.");
}

}  // namespace arena
