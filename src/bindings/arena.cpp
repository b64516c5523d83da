// The core's Arena for Python. What people call is arena.Arena, which is written in Python on top of this.
#include "core/arena/arena.hpp"

#include <pybind11/stl.h>

#include <chrono>
#include <iterator>
#include <memory>
#include <string>
#include <unordered_map>

#include "bindings/bindings.hpp"
#include "bindings/buffer.hpp"
#include "bindings/lines.hpp"
#include "bindings/standstill.hpp"
#include "trace/recorder.hpp"

namespace py = pybind11;

namespace arena {
namespace {

constexpr std::uint64_t kLeastAlignment = 256;  // of what other allocators give

Moving moving_if(bool may_move) { return may_move ? Moving::kAllowed : Moving::kForbidden; }

cu::Stream stream_from(std::uint64_t number) { return reinterpret_cast<cu::Stream>(number); }

// Finds a moment in which live data may be moved, or nothing. The GIL is held from then on until the data has moved: no
// thread that needs it can give the device work. What is queued by then is waited for before, without the GIL: a function
// of the program's may be among it, which needs that. So the other threads are looked at before that wait, and must have
// slept all the while. `may_move` is a bool for those who need not look, or else what looks.
std::optional<QuiescenceCheck> find_moment(Arena& arena, const py::object& may_move) {
  constexpr int kTries = 5;
  const auto wait = [&] {
    const WithoutGil without_gil;
    arena.synchronize();
  };
  if (py::isinstance<py::bool_>(may_move)) {
    if (!may_move.cast<bool>()) return std::nullopt;
    wait();
    return QuiescenceCheck{};
  }
  for (int i = 0; i < kTries; ++i) {
    const py::object found = may_move();
    if (found.is_none()) break;
    const auto standstill = found.cast<std::shared_ptr<Standstill>>();
    wait();
    if (standstill->holds()) return [standstill] { return standstill->holds(); };
  }
  return std::nullopt;
}

bool is_compactable(Arena& arena) {
  const WithoutGil without_gil;
  return arena.is_compactable();
}

// A buffer, made before anybody else runs: an exception of a signal handler finds it owned.
py::object allocate(const std::shared_ptr<Arena>& arena, Bytes size, std::uint64_t stream, const py::object& may_reback,
                    bool is_last) {
  const lines::Id line = lines::current();
  AllocateOptions options{.line = line, .is_last = is_last};
  const bool is_asked = !may_reback.is(py::handle(Py_False)) && is_compactable(*arena);
  const std::optional<QuiescenceCheck> moment = is_asked ? find_moment(*arena, may_reback) : std::nullopt;
  Block* block = nullptr;
  if (moment) {
    options.moving = Moving::kAllowed;
    options.is_quiescent = *moment ? &*moment : nullptr;
    block = &arena->allocate(size, stream_from(stream), options);
  } else {
    const WithoutGil without_gil;
    if (is_asked) arena->expect_moving(false);
    block = &arena->allocate(size, stream_from(stream), options);
  }
  PyObject* made = buffers::new_buffer(arena, *block, size, arena->device().number());
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
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

// In any thread. What the function has when it runs Python must need no GIL to be dropped.
template <typename Function>
auto with_gil(const Function& function) {
  return or_stay([&] {
    const py::gil_scoped_acquire gil;
    return or_stay(function);
  });
}

std::string shown(const py::handle& object) { return py::repr(object).cast<std::string>(); }

// What it says of itself; an error in saying so is its own.
std::uint64_t address_in(const py::object& memory, Bytes size) {
  py::object given;
  try {
    given = memory.attr("ptr");
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_AttributeError)) throw;
    throw UsageError("upstream= gave " + shown(memory) + ", which has no address in .ptr");
  }
  std::uint64_t address = 0;
  try {
    address = given.cast<std::uint64_t>();
  } catch (const py::cast_error&) {  // it is no number: told below
  }
  if (address == 0 || address % kLeastAlignment != 0) {
    throw UsageError("upstream= gave memory at " + shown(given) +
                     ", which is not an address that is a multiple of 256");
  }
  if (size > ~address) {
    throw UsageError("upstream= gave memory at " + shown(given) + ", after which there are no " + std::to_string(size) +
                     " bytes");
  }
  return address;
}

// Memory that a function of the user's gives: an object with an address, which is kept until it is not needed any more.
PlainSource from_python(py::object function) {
  // Dropped with the GIL, or, when there is no interpreter left to drop it, not at all.
  const auto drop = [](PyObject* object) {
    if (Py_IsInitialized() != 0) with_gil([&] { Py_DECREF(object); });
  };
  const std::shared_ptr<PyObject> held(function.release().ptr(), drop);
  return [held, drop](Bytes size) -> std::optional<PlainMemory> {
    return with_gil([&]() -> std::optional<PlainMemory> {
      try {
        // Not by pybind11, whose objects would be dropped if the thread ended in there.
        PyObject* given = PyObject_CallFunction(held.get(), "K", static_cast<unsigned long long>(size));
        if (given == nullptr) throw py::error_already_set();
        auto memory = py::reinterpret_steal<py::object>(given);
        const std::uint64_t address = address_in(memory, size);
        PyObject* owner = memory.release().ptr();
        return PlainMemory{address, [owner, drop] { drop(owner); }};
      } catch (py::error_already_set& error) {
        if (!error.matches(PyExc_MemoryError)) throw;
        return std::nullopt;
      }
    });
  };
}

// An object of Python's that is kept, and dropped with the GIL; not at all when the interpreter has ended.
std::shared_ptr<void> kept(py::object object) {
  const auto drop = [](PyObject* held) {
    if (Py_IsInitialized() != 0 && !is_finalizing()) with_gil([&] { Py_DECREF(held); });
  };
  return std::shared_ptr<PyObject>(object.release().ptr(), drop);
}

void keep_stream(Arena& arena, std::uint64_t stream, py::object owner) {
  std::shared_ptr<void> held = owner.is_none() ? nullptr : kept(std::move(owner));
  const WithoutGil without_gil;
  arena.keep_stream(stream_from(stream), std::move(held));
}

std::shared_ptr<Arena> make_arena(std::shared_ptr<Driver> driver, int device, ArenaSettings settings,
                                  const py::object& upstream) {
  if (!upstream.is_none()) settings.upstream = from_python(upstream);
  const WithoutGil without_gil;
  const auto end = [](Arena* arena) {
    if (arena->is_inherited()) return;  // all that it has is the parent's
    if (PyGILState_Check() == 0) return delete arena;
    // The end of an arena waits for the device, which may be running a function that needs the GIL.
    WithoutGil without_gil;
    delete arena;
  };
  return std::shared_ptr<Arena>(new Arena(std::move(driver), device, std::move(settings)), end);
}

// Quick where nobody else has the lock: the GIL is let go only to wait for it.
Stats read_stats(Arena& arena, bool may_reback) {
  if (const std::optional<Stats> stats = arena.try_stats(moving_if(may_reback))) return *stats;
  const WithoutGil without_gil;
  return arena.stats(moving_if(may_reback));
}

// A property that takes the lock. Releases the GIL first: the thread that holds the lock may wait for Python code.
template <typename Value>
py::cpp_function locked(Value (Arena::*get)() const) {
  return py::cpp_function(get, py::call_guard<WithoutGil>());
}

std::int64_t steady_now() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

PyObject* age_of(const Snapshot::Piece& piece, std::int64_t now) {
  return piece.born == 0 ? py::none().release().ptr() : PyFloat_FromDouble(static_cast<double>(now - piece.born) / 1e9);
}

const py::tuple& frame_of(std::unordered_map<lines::Id, py::tuple>& known, lines::Id id) {
  const auto it = known.find(id);
  return it != known.end() ? it->second : known.emplace(id, lines::frames(id)).first->second;
}

// There may be hundreds of thousands: texts are made once each, and the tuples, of arena's Piece, filled by hand.
py::list pieces_of(const Snapshot& snapshot, std::int64_t now) {
  auto* const type = reinterpret_cast<PyTypeObject*>(lines::piece_class().ptr());
  const py::str states[] = {"live", "pending", "captured", "releasable", "stranded"};
  std::unordered_map<std::string, py::str> scopes;
  std::unordered_map<lines::Id, py::tuple> frames;
  py::list rows(snapshot.pieces.size());
  py::ssize_t row = 0;
  for (const Snapshot::Piece& p : snapshot.pieces) {
    PyObject* const fields[] = {PyLong_FromUnsignedLongLong(p.address),
                                PyLong_FromUnsignedLongLong(p.size),
                                py::str(states[static_cast<int>(p.state)]).release().ptr(),
                                PyLong_FromUnsignedLongLong(p.requested),
                                PyLong_FromUnsignedLongLong(p.stream),
                                PyLong_FromUnsignedLongLong(p.serial),
                                py::str(scopes.try_emplace(p.scope, p.scope).first->second).release().ptr(),
                                py::bool_(p.pinned).release().ptr(),
                                py::tuple(frame_of(frames, p.line)).release().ptr(),
                                age_of(p, now)};
    PyObject* tuple = type->tp_alloc(type, py::ssize_t{std::size(fields)});
    if (tuple == nullptr) throw py::error_already_set();
    for (py::ssize_t i = 0; i < py::ssize_t{std::size(fields)}; ++i) PyTuple_SET_ITEM(tuple, i, fields[i]);
    PyList_SET_ITEM(rows.ptr(), row++, tuple);
  }
  return rows;
}

// `now` is when it was taken, on the steady clock.
py::dict dict_of(const Snapshot& snapshot, std::int64_t now) {
  using py::literals::operator""_a;
  py::list segments, handles, aliases;
  for (const Snapshot::Segment& s : snapshot.segments) segments.append(py::make_tuple(s.address, s.size));
  for (const Snapshot::Handle& h : snapshot.handles) handles.append(py::make_tuple(h.address, h.size));
  for (const Snapshot::Alias& a : snapshot.aliases) aliases.append(py::make_tuple(a.address, a.handle, a.size));
  return py::dict("stats"_a = snapshot.stats, "largest_free"_a = snapshot.largest_free, "peak"_a = snapshot.peak.stats,
                  "peak_largest_free"_a = snapshot.peak.largest_free, "granule"_a = snapshot.granule,
                  "plain"_a = snapshot.plain, "addresses"_a = snapshot.addresses, "peers"_a = snapshot.peers,
                  "remark"_a = snapshot.remark, "next_serial"_a = snapshot.next_serial, "segments"_a = segments,
                  "handles"_a = handles, "aliases"_a = aliases, "pieces"_a = pieces_of(snapshot, now));
}

py::dict snapshot_of(Arena& arena, bool may_reback) {
  const Snapshot snapshot = [&] {
    const WithoutGil without_gil;
    return arena.snapshot(moving_if(may_reback));
  }();
  return dict_of(snapshot, steady_now());
}

void bind_failure(py::module_& module) {
  py::class_<Failure>(module, "Failure", "What the core knows of a request that failed, beyond what its error says.")
      .def_readonly("could_move", &Failure::could_move, "Whether live data could be moved for it.")
      .def_property_readonly(
          "in_scope",
          [](const Failure& failure) -> std::optional<std::vector<std::uint64_t>> {
            if (!failure.budget) return std::nullopt;
            return failure.budget->serials;
          },
          "The serials of the blocks in the scope whose budget was reached; None if it was not that.")
      .def(
          "snapshot",
          [](const Failure& failure) -> py::object {
            return failure.snapshot ? py::object(dict_of(*failure.snapshot, steady_now())) : py::none();
          },
          "Everything there was at that moment; None if the request was tried again.");
}

// Its dictionaries and lists are made without any lock: they may run anything.
void bind_watch(py::module_& module) {
  py::class_<Watch, std::shared_ptr<Watch>>(module, "Watch",
                                            "What was held at the peak of live bytes, and the account over time.")
      .def(py::init<>())
      .def_property_readonly(
          "samples",
          [](const Watch& watch) {
            py::list rows;
            for (const Watch::Sample& sample : watch.samples()) rows.append(py::make_tuple(sample.at, sample.stats));
            return rows;
          },
          "Nanoseconds since the beginning, and the account then.")
      .def_property_readonly(
          "peak",
          [](const Watch& watch) -> py::object {
            const std::shared_ptr<const Watch::Moment> moment = watch.moment();
            if (!moment) return py::none();
            return py::make_tuple(moment->at, dict_of(moment->snapshot, moment->clock));
          },
          "Nanoseconds since the beginning, and everything there was then; None if nothing was ever live.")
      .def_property_readonly("now", &Watch::now, "Nanoseconds since the beginning.");
}

void bind_stats(py::module_& module) {
  py::class_<Stats>(module, "Stats", "What is reserved and why, in bytes, and what has happened so far.")
#define ARENA_STAT(name, text) .def_readonly(#name, &Stats::name, text)
      ARENA_STAT(requested, "What the program asked for.")                                               //
      ARENA_STAT(live, "Bytes in allocations, after rounding.")                                          //
      ARENA_STAT(reserved, "Bytes of physical memory taken from the driver.")                            //
      ARENA_STAT(rounding, "live - requested.")                                                          //
      ARENA_STAT(pending, "Freed, but a stream may still be using it.")                                  //
      ARENA_STAT(captured, "Freed, but kept for a captured graph, which writes there at every launch.")  //
      ARENA_STAT(releasable, "Wholly free handles: trim() would return them.")                           //
      ARENA_STAT(stranded, "Free pieces of handles that a live block also sits on.")                     //
      ARENA_STAT(compactable, "Of stranded: whole granules, which re-backing frees.")                    //
      ARENA_STAT(spare, "Handles that are mapped nowhere.")                                              //
      ARENA_STAT(cap, "The most that may be reserved.")                                                  //
      ARENA_STAT(headroom, "What is left free on the device.")                                           //
      ARENA_STAT(device_total, "Bytes of memory the device has.")                                        //
      ARENA_STAT(device_free,
                 "Bytes free on the device when the driver was last asked, less what was taken here since.")
          ARENA_STAT(largest, "The largest request that would pass now: one of the next two.")             //
      ARENA_STAT(largest_without_moving, "The largest request that would pass without moving live data.")  //
      ARENA_STAT(largest_with_moving, "The largest request that would pass with moving live data.")        //
      ARENA_STAT(peak_requested, "The highest value of requested so far.")                                 //
      ARENA_STAT(peak_live, "The highest value of live so far.")                                           //
      ARENA_STAT(peak_reserved, "The highest value of reserved so far.")                                   //
      ARENA_STAT(allocations, "Allocations made so far.")                                                  //
      ARENA_STAT(blocks, "Allocations that live.")                                                         //
      ARENA_STAT(hits, "Allocations that needed nothing of the driver.")                                   //
      ARENA_STAT(splits, "Allocations that took a part of a gap.")                                         //
      ARENA_STAT(failures, "Requests that could not be met.")                                              //
      ARENA_STAT(maps, "Handles mapped so far.")                                                           //
      ARENA_STAT(unmaps, "Handles unmapped so far.")                                                       //
      ARENA_STAT(rebacked, "Handles replaced under live data so far.")                                     //
      ARENA_STAT(driver_calls, "Calls of the driver so far.")                                              //
      ARENA_STAT(waits, "Waits of one stream for another so far.")
#undef ARENA_STAT
          ;
}

// The memory of a graph, with the arena that it is of.
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
      .def("end", &Graph::end, py::call_guard<WithoutGil>(), "What this thread allocates is not the graph's any more.")
      .def("release", &Graph::release, py::call_guard<WithoutGil>(), "The graph will not be launched again.");
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
      .def_property_readonly("name", &Scope::name, "What it is called.")
      .def_property_readonly("first", &Scope::first, "The lowest number that an allocation in it may have.")
      .def_property_readonly("path", &Scope::path, "Its name after those of the scopes around it.")
      .def_property_readonly("budget", &Scope::budget, "The most that may be live in it, if it has a budget.")
      .def_property_readonly("live", &Scope::live, "Bytes that were allocated in it and live.")
      .def_property_readonly("peak", &Scope::peak, "The highest value of live so far.")
      .def_property_readonly("blocks", &Scope::blocks, "Allocations that were made in it and live.");
}

}  // namespace

void bind_arena(py::module_& module) {
  bind_stats(module);
  bind_scope(module);
  bind_graph(module);
  bind_failure(module);
  bind_watch(module);
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
             py::module_::import("arena._pool.buffer");  // says what blocks become; `import arena` leaves it for later
             return make_arena(std::move(driver), device, std::move(settings), upstream);
           }),
           py::arg("driver"), py::arg("device"), py::arg("cap"), py::arg("reserve"), py::arg("headroom"),
           py::arg("growth"), py::arg("vmm") = true, py::arg("moves") = false, py::arg("peers") = py::none(),
           py::arg("upstream") = py::none(), py::arg("validates") = false)
      .def("allocate", &allocate, py::arg("size"), py::arg("stream"), py::arg("may_reback"), py::arg("is_last") = true,
           "A new block, as an arena.Buffer.")
      .def("expect_moving", &Arena::expect_moving, py::arg("moves"), "Say whether live data may be moved if need be.")
      .def("keep_stream", &keep_stream, py::arg("stream"), py::arg("owner"),
           "Keep what owns a stream until its memory is done with. None: the stream lives for ever.")
      .def("free", &free_block, py::arg("block"), "Give a block back: a Buffer, or the address of a live one.")
      .def(
          "record_stream",
          [](Arena& arena, std::uint64_t address, std::uint64_t stream) {
            arena.record_stream(address, stream_from(stream));
          },
          py::arg("address"), py::arg("stream"), py::call_guard<WithoutGil>(), "Say that a stream uses a block too.")
      .def(
          "begin_graph",
          [](const std::shared_ptr<Arena>& arena) {
            const WithoutGil without_gil;
            return Graph(arena);
          },
          "What this thread allocates from now on is a captured graph's.")
      .def("release_graphs", &Arena::release_graphs, py::call_guard<WithoutGil>(),
           "No graph that was captured without begin_graph() will be launched again.")
      .def("pin", &Arena::pin, py::arg("address"), py::call_guard<WithoutGil>(), "Keep what backs a block.")
      .def("unpin", &Arena::unpin, py::arg("address"), py::call_guard<WithoutGil>(), "Undo one pin().")
      .def("close", &Arena::close, py::call_guard<WithoutGil>(), "Allocate no more, give back the rest.")
      .def("trim", &Arena::trim, py::call_guard<WithoutGil>(), "Give back what is wholly free.")
      .def(
          "compact",
          [](Arena& arena, const py::object& may_reback) {
            const std::optional<QuiescenceCheck> moment = find_moment(arena, may_reback);
            if (moment) arena.compact(*moment);
            return moment.has_value();
          },
          py::arg("may_reback"),
          "Give back every granule that no block touches, if live data may be moved now. Holds the GIL.")
      .def("needs_safe_point", &Arena::needs_safe_point, "Whether safe_point() would have something to do.")
      .def(
          "safe_point",
          [](Arena& arena, double seconds) {
            return arena.safe_point(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
          },
          py::arg("seconds"), "Move live data until the time is up; the bytes that it set free. Holds the GIL.")
      .def("is_compactable", &Arena::is_compactable, py::call_guard<WithoutGil>(),
           "Whether a request could gain anything by moving live data.")
      .def("synchronize", &Arena::synchronize, py::call_guard<WithoutGil>(), "Wait for the device.")
      .def(
          "reserve", [](Arena& arena, Bytes size, bool may_reback) { arena.reserve(size, moving_if(may_reback)); },
          py::arg("size"), py::arg("may_reback"), py::call_guard<WithoutGil>(), "Have at least so much reserved.")
      .def("set_cap", &Arena::set_cap, py::arg("cap"), py::call_guard<WithoutGil>(), "Change the cap.")
      .def_property_readonly("id", &Arena::id, "A number of its own.")
      .def_property_readonly("is_plain", &Arena::is_plain, "Whether it works on plain segments.")
      .def_property_readonly("addresses", locked(&Arena::addresses), "Bytes of addresses reserved for virtual memory.")
      .def_property_readonly("peers", locked(&Arena::peers), "The other devices that have access to virtual memory.")
      .def_property_readonly("rdma", locked(&Arena::rdma), "Whether memory is created for GPUDirect RDMA.")
      .def_property_readonly("remark", locked(&Arena::remark), "What is not as usual on this device, and why.")
      .def_property_readonly("validates", &Arena::validates, "Whether every operation ends with validate().")
      .def("reserved", &Arena::reserved, py::call_guard<WithoutGil>(),
           "Bytes of physical memory taken from the driver.")
      .def("live", &Arena::live, py::call_guard<WithoutGil>(), "Bytes in allocations, after rounding.")
      .def(
          "scopes", &scopes_of,
          "Of all scopes so far, by path: bytes and allocations that live, the peak, how often it was entered, and the "
          "last budget.")
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
          py::arg("recorder").none(true), "Have what happens recorded, or, with None, no more.")
      .def("watch", &Arena::watch, py::arg("watch").none(true), py::call_guard<WithoutGil>(),
           "Have the peak and the account over time kept, or, with None, no more.")
      .def("update_watch", &Arena::update_watch, py::call_guard<WithoutGil>(), "Bring the watch up to this moment.")
      .def("end_scope", &Arena::end_scope, py::arg("scope"), py::call_guard<WithoutGil>(),
           "Count no more allocations in a scope.")
      .def("snapshot", &snapshot_of, py::arg("may_reback") = true, "Everything there is, at one moment.")
      .def("stats", &read_stats, py::arg("may_reback") = true, "The account.")
      .def(
          "stats_after_asking",
          [](Arena& arena, bool may_reback) { return arena.stats_after_asking(moving_if(may_reback)); },
          py::arg("may_reback"), py::call_guard<WithoutGil>(),
          "The account, after asking the device what it has left and the streams what they have done.")
      .def("validate", &Arena::validate, py::call_guard<WithoutGil>(), "Check every invariant.");
}

}  // namespace arena
