// The core's Arena for Python. What people call is arena.Arena, which is written in Python on top of this.
#include "core/arena.hpp"

#include <memory>

#include "bindings/bindings.hpp"

namespace py = pybind11;

namespace arena {
namespace {

cu::Stream stream_from(std::uint64_t number) { return reinterpret_cast<cu::Stream>(number); }

// With the GIL held throughout when live data may move: then no other Python thread can give the device work. What is
// queued by then is waited for before, without the GIL: a function of the program's may be among it, which needs that.
std::uint64_t allocate(Arena& arena, Bytes size, std::uint64_t stream, bool may_reback) {
  if (may_reback) {
    {
      py::gil_scoped_release release;
      arena.synchronize();
    }
    return arena.allocate(size, stream_from(stream), true);
  }
  py::gil_scoped_release release;
  return arena.allocate(size, stream_from(stream), false);
}

void bind_stats(py::module_& module) {
  py::class_<Stats>(module, "Stats", "What is reserved and why, in bytes, and what has happened so far.")
#define ARENA_STAT(name, text) .def_readonly(#name, &Stats::name, text)
      ARENA_STAT(requested, "What the program asked for.")                             //
      ARENA_STAT(live, "Bytes in allocations, after rounding.")                        //
      ARENA_STAT(reserved, "Bytes of physical memory taken from the driver.")          //
      ARENA_STAT(rounding, "live - requested.")                                        //
      ARENA_STAT(pending, "Freed, but a stream may still be using it.")                //
      ARENA_STAT(releasable, "Wholly free handles: trim() would return them.")         //
      ARENA_STAT(stranded, "Free pieces of handles that a live block also sits on.")   //
      ARENA_STAT(compactable, "Of stranded: whole granules, which re-backing frees.")  //
      ARENA_STAT(spare, "Handles that are mapped nowhere.")                            //
      ARENA_STAT(cap, "The most that may be reserved.")                                //
      ARENA_STAT(headroom, "What is left free on the device.")                         //
      ARENA_STAT(device_total, "Bytes of memory the device has.")                      //
      ARENA_STAT(largest, "The largest request that would pass now.")                  //
      ARENA_STAT(peak_requested, "The highest value of requested so far.")             //
      ARENA_STAT(peak_live, "The highest value of live so far.")                       //
      ARENA_STAT(peak_reserved, "The highest value of reserved so far.")               //
      ARENA_STAT(allocations, "Allocations made so far.")                              //
      ARENA_STAT(maps, "Handles mapped so far.")                                       //
      ARENA_STAT(unmaps, "Handles unmapped so far.")                                   //
      ARENA_STAT(rebacked, "Handles replaced under live data so far.")                 //
      ARENA_STAT(driver_calls, "Calls of the driver so far.")                          //
      ARENA_STAT(waits, "Waits of one stream for another so far.")
#undef ARENA_STAT
          ;
}

}  // namespace

void bind_arena(py::module_& module) {
  bind_stats(module);
  py::class_<Arena, std::shared_ptr<Arena>>(module, "Arena", "The core of arena.Arena.")
      .def(py::init(
               [](std::shared_ptr<Driver> driver, int device, Bytes cap, Bytes reserve, Bytes headroom, Bytes growth) {
                 py::gil_scoped_release release;
                 // The end of an arena waits for the device, which may be running a function that needs the GIL.
                 const auto end = [](Arena* arena) {
                   if (PyGILState_Check() == 0) return delete arena;
                   py::gil_scoped_release release_at_end;
                   delete arena;
                 };
                 return std::shared_ptr<Arena>(
                     new Arena(std::move(driver), device, ArenaSettings{cap, reserve, headroom, growth}), end);
               }),
           py::arg("driver"), py::arg("device"), py::arg("cap"), py::arg("reserve"), py::arg("headroom"),
           py::arg("growth"))
      .def("allocate", &allocate, py::arg("size"), py::arg("stream"), py::arg("may_reback"),
           "The address of a new block.")
      .def("free", &Arena::free, py::arg("address"), py::call_guard<py::gil_scoped_release>(), "Give a block back.")
      .def(
          "record_stream",
          [](Arena& arena, std::uint64_t address, std::uint64_t stream) {
            arena.record_stream(address, stream_from(stream));
          },
          py::arg("address"), py::arg("stream"), py::call_guard<py::gil_scoped_release>(),
          "Say that a stream uses a block too.")
      .def("close", &Arena::close, py::call_guard<py::gil_scoped_release>(), "Allocate no more, give back the rest.")
      .def("trim", &Arena::trim, py::call_guard<py::gil_scoped_release>(), "Give back what is wholly free.")
      .def(
          "compact",
          [](Arena& arena) {
            {
              py::gil_scoped_release release;
              arena.synchronize();
            }
            arena.compact();
          },
          "Give back every granule that no block touches. Holds the GIL.")
      .def("reserve", &Arena::reserve, py::arg("size"), py::call_guard<py::gil_scoped_release>(),
           "Have at least so much reserved.")
      .def("set_cap", &Arena::set_cap, py::arg("cap"), py::call_guard<py::gil_scoped_release>(), "Change the cap.")
      .def("stats", &Arena::stats, py::call_guard<py::gil_scoped_release>(), "The account.")
      .def("validate", &Arena::validate, py::call_guard<py::gil_scoped_release>(), "Check every invariant.");
}

}  // namespace arena
