// Driver and DeviceInfo for Python. Calls that may reach a device are made without the GIL.
#include "driver/driver.hpp"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>

#include "base/units.hpp"
#include "bindings/bindings.hpp"
#include "driver/devices.hpp"
#include "driver/select.hpp"

namespace py = pybind11;

namespace arena {
namespace {

std::shared_ptr<Driver> open_and_warn(const Choice& choice) {
  Opened opened;
  {
    const WithoutGil without_gil;
    opened = open_driver(choice);
  }
  if (!opened.why_simulated.empty()) {
    py::module_::import("arena._sim.warning").attr("warn")(opened.why_simulated);
  }
  return std::move(opened.driver);
}

std::shared_ptr<Driver> open(const std::optional<py::object>& given) {
  const auto chosen = [&] {
    if (!given) return choice_from_environment();
    const std::string text = py::module_::import("os").attr("fsencode")(*given).cast<std::string>();
    if (text.find('\0') == std::string::npos) return parse_choice(text, "choice");
    throw UsageError("choice=" + py::repr(*given).cast<std::string>() + " has a NUL in it, which no path has");
  };
  return open_and_warn(chosen());
}

std::shared_ptr<Driver> default_driver_or_open() {
  if (std::shared_ptr<Driver> kept = default_driver()) return kept;
  // Kept after the warning, which may be raised as an error: then the next call warns again.
  return keep_default_driver(open_and_warn(choice_from_environment()));
}

std::string describe_driver(const Driver& driver) {
  return "<arena.Driver " + format_version(driver.version()) + (driver.is_simulated() ? ", simulated, " : ", ") +
         driver.path() + ">";
}

std::string show_device(const DeviceInfo& info) {
  const std::string free = info.free ? format_bytes(*info.free) : "an unknown part";
  return "<arena.DeviceInfo " + std::to_string(info.number) + ": " + info.name + ", " + free + " of " +
         format_bytes(info.total) + " free, " +
         (info.virtual_memory ? "granules of " + format_bytes(info.granularity) : "no virtual memory") + ">";
}

void bind_device_info(py::module_& module) {
  py::class_<DeviceInfo>(module, "DeviceInfo", "One device, at the time of the call.")
      .def_readonly("number", &DeviceInfo::number, "The driver's number for it, from 0.")
      .def_readonly("name", &DeviceInfo::name, "Its product name.")
      .def_readonly("total", &DeviceInfo::total, "Bytes of memory it has.")
      .def_readonly("free", &DeviceInfo::free, "Bytes that were free; None if the device refuses a context.")
      .def_readonly("problem", &DeviceInfo::problem, "Why the device refuses a context; empty if it does not.")
      .def_readonly("virtual_memory", &DeviceInfo::virtual_memory,
                    "Whether memory can be mapped piece by piece, which the arena needs to avoid fragmentation.")
      .def_readonly("granularity", &DeviceInfo::granularity,
                    "Bytes in a granule, the smallest piece that can be mapped; 0 without virtual memory.")
      .def_readonly("integrated", &DeviceInfo::integrated, "Whether it shares the host's memory.")
      .def_readonly("rdma", &DeviceInfo::rdma, "Whether memory can be created for GPUDirect RDMA.")
      .def_readonly("peers", &DeviceInfo::peers, "The numbers of the devices that can access its memory.")
      .def("__repr__", &show_device);
}

}  // namespace

void bind_driver(py::module_& module) {
  bind_device_info(module);
  py::class_<Driver, std::shared_ptr<Driver>>(module, "Driver", "A CUDA driver: NVIDIA's, or the simulated one.")
      .def_static("open", &open, py::arg("choice") = py::none(),
                  "Open the driver that `choice` names: \"auto\", \"cuda\", \"sim\" or a path.\n\n"
                  "Without a choice, ARENA_DRIVER decides, and \"auto\" if that is not set.")
      .def_property_readonly("path", &Driver::path, "The file that was loaded.")
      .def_property_readonly("version", &Driver::version, "13000 for CUDA 13.0.")
      .def_property_readonly("is_simulated", &Driver::is_simulated, "Whether this is the simulated driver.")
      .def("devices", &device_infos, py::call_guard<WithoutGil>(),
           "The devices, with their free memory now. Starts each for a moment if it is not in use.")
      .def("__repr__", &describe_driver);
  module.def("device_count", &Driver::device_count, py::arg("driver"), py::call_guard<WithoutGil>(),
             "The number of devices.");
  module.def("describe_device", &describe_device, py::arg("driver"), py::arg("number"), py::call_guard<WithoutGil>(),
             "One device, without its free memory. Does not start the device.");
  module.def("device_info", &device_info, py::arg("driver"), py::arg("number"), py::call_guard<WithoutGil>(),
             "One device, with its free memory. Starts it for a moment if it is not in use.");
  module.def("default_driver", &default_driver_or_open,
             "The driver that ARENA_DRIVER names, opened at the first call that succeeds.");
  module.def("is_real_driver_here", &is_real_driver_here, py::call_guard<WithoutGil>(),
             "Whether programs in this process that open libcuda.so.1 get another driver than the simulated one.");
  module.def(
      "before_simulated_library_loads", &before_simulated_library_loads, py::call_guard<WithoutGil>(),
      "Note that arena is about to load libcudasim.so, which does not mean that the program wants a simulation.");
  module.def("want_simulation", &want_simulation,
             "Note that the program wants a simulation: auto then takes the simulated driver without a warning.");
  module.def("stop_host_functions", &stop_host_functions, py::call_guard<WithoutGil>(),
             "Stop the simulated driver, if it is loaded, from calling Python functions.");
  module.def("set_simulated_library", &set_simulated_library, py::arg("path"),
             "Set the path of libcudasim.so. Called when arena is imported.");
}

}  // namespace arena
