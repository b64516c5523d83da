// CallTimer for Python. All its calls reach a device, so they are made without the GIL.
#include "driver/timing.hpp"

#include <pybind11/stl.h>

#include <memory>
#include <tuple>
#include <vector>

#include "bindings/bindings.hpp"

namespace py = pybind11;

namespace arena {
namespace {

using Row = std::tuple<std::string, std::uint64_t, double, bool, bool>;

std::vector<Row> rows_of(const std::vector<CallTime>& times) {
  std::vector<Row> rows;
  for (const CallTime& t : times) rows.emplace_back(t.call, t.size, t.microseconds, t.loaded, t.waited);
  return rows;
}

}  // namespace

void bind_timing(py::module_& module) {
  using WithoutTheGil = py::call_guard<WithoutGil>;
  py::class_<CallTimer>(
      module, "CallTimer",
      "Times single calls of the driver on one device. A round gives back what it took, and returns\n"
      "(call, size, microseconds, loaded, waited) for each call; the size is 0 where it does not matter.")
      .def(py::init([](const std::shared_ptr<Driver>& driver, int device) {
             return std::make_unique<CallTimer>(driver, device);
           }),
           py::arg("driver"), py::arg("device"), WithoutTheGil())
      .def(
          "virtual_round", [](CallTimer& timer, std::uint64_t size) { return rows_of(timer.virtual_round(size)); },
          py::arg("size"), WithoutTheGil(), "Reserve, create, map, set access, unmap, release and free addresses.")
      .def(
          "plain_round", [](CallTimer& timer, std::uint64_t size) { return rows_of(timer.plain_round(size)); },
          py::arg("size"), WithoutTheGil(), "cuMemAlloc and cuMemFree.")
      .def(
          "other_round", [](CallTimer& timer) { return rows_of(timer.other_round()); }, WithoutTheGil(),
          "cuMemGetInfo, and recording and querying an event.")
      .def("begin_load", &CallTimer::begin_load, py::arg("size"), py::arg("milliseconds"), WithoutTheGil(),
           "Keep another stream busy, with so many milliseconds of queued work, until end_load().")
      .def("end_load", &CallTimer::end_load, WithoutTheGil(), "Wait for that work. Does nothing without load.")
      .def("close", &CallTimer::close, WithoutTheGil(), "End the load, and release the device.")
      .def_property_readonly("has_virtual_clock", &CallTimer::has_virtual_clock,
                             "Whether times are the simulated driver's prices.");
}

}  // namespace arena
