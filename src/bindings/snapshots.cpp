#include "bindings/snapshots.hpp"

#include <pybind11/stl.h>

#include <chrono>
#include <iterator>
#include <memory>
#include <string>
#include <unordered_map>

#include "bindings/bindings.hpp"
#include "bindings/lines.hpp"
#include "core/heap/watch.hpp"

namespace py = pybind11;

namespace arena {
namespace {

PyObject* age_of(const Snapshot::Piece& piece, std::int64_t now) {
  return piece.born == 0 ? py::none().release().ptr() : PyFloat_FromDouble(static_cast<double>(now - piece.born) / 1e9);
}

// What an id stands for, as Python's objects.
struct Caller {
  py::tuple frames;
  py::str framework;
};
const Caller& caller_of(std::unordered_map<lines::Id, Caller>& known, lines::Id id) {
  const auto it = known.find(id);
  if (it != known.end()) return it->second;
  return known.emplace(id, Caller{lines::frames(id), py::str(std::string(lines::framework_of(id)))}).first->second;
}

// There may be hundreds of thousands of pieces: each text is made once, and the tuples of type Piece are filled directly.
py::list pieces_of(const Snapshot& snapshot, std::int64_t now) {
  auto* const type = reinterpret_cast<PyTypeObject*>(lines::piece_class().ptr());
  const py::str states[] = {"live", "pending", "captured", "releasable", "stranded"};
  std::unordered_map<std::string, py::str> scopes;
  std::unordered_map<lines::Id, Caller> callers;
  py::list rows(snapshot.pieces.size());
  py::ssize_t row = 0;
  for (const Snapshot::Piece& p : snapshot.pieces) {
    const Caller& caller = caller_of(callers, p.line);
    PyObject* const fields[] = {PyLong_FromUnsignedLongLong(p.address),
                                PyLong_FromUnsignedLongLong(p.size),
                                py::str(states[static_cast<int>(p.state)]).release().ptr(),
                                PyLong_FromUnsignedLongLong(p.requested),
                                PyLong_FromUnsignedLongLong(p.stream),
                                PyLong_FromUnsignedLongLong(p.serial),
                                py::str(scopes.try_emplace(p.scope, p.scope).first->second).release().ptr(),
                                py::bool_(p.pinned).release().ptr(),
                                py::tuple(caller.frames).release().ptr(),
                                age_of(p, now),
                                py::str(caller.framework).release().ptr()};
    PyObject* tuple = type->tp_alloc(type, py::ssize_t{std::size(fields)});
    if (tuple == nullptr) throw py::error_already_set();
    for (py::ssize_t i = 0; i < py::ssize_t{std::size(fields)}; ++i) PyTuple_SET_ITEM(tuple, i, fields[i]);
    PyList_SET_ITEM(rows.ptr(), row++, tuple);
  }
  return rows;
}

}  // namespace

std::int64_t steady_now() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

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

// Its dictionaries and lists are made without a lock: that may run anything.
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
  py::class_<Stats>(module, "Stats", "What is reserved and why, in bytes, and counts so far.")
#define ARENA_STAT(name, text) .def_readonly(#name, &Stats::name, text)
      ARENA_STAT(requested, "Bytes that the program requested.")                                         //
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
      ARENA_STAT(headroom, "What must stay free on the device.")                                         //
      ARENA_STAT(device_total, "Bytes of memory the device has.")                                        //
      ARENA_STAT(device_free, "Bytes free on the device at the last query, less what the arena took since.")
          ARENA_STAT(largest, "The largest request that would pass now: one of the next two.")             //
      ARENA_STAT(largest_without_moving, "The largest request that would pass without moving live data.")  //
      ARENA_STAT(largest_with_moving, "The largest request that would pass with moving live data.")        //
      ARENA_STAT(peak_requested, "The highest value of requested so far.")                                 //
      ARENA_STAT(peak_live, "The highest value of live so far.")                                           //
      ARENA_STAT(peak_reserved, "The highest value of reserved so far.")                                   //
      ARENA_STAT(allocations, "Allocations made so far.")                                                  //
      ARENA_STAT(blocks, "Live allocations.")                                                              //
      ARENA_STAT(hits, "Allocations without a driver call.")                                               //
      ARENA_STAT(splits, "Allocations that took a part of a gap.")                                         //
      ARENA_STAT(failures, "Requests that failed.")                                                        //
      ARENA_STAT(maps, "Handles mapped so far.")                                                           //
      ARENA_STAT(unmaps, "Handles unmapped so far.")                                                       //
      ARENA_STAT(rebacked, "Handles replaced under live data so far.")                                     //
      ARENA_STAT(driver_calls, "Driver calls so far.")                                                     //
      ARENA_STAT(waits, "Waits of one stream for another so far.")
#undef ARENA_STAT
          ;
}

}  // namespace arena
