#include "bindings/torch/questions.hpp"

#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "bindings/bindings.hpp"
#include "bindings/lines.hpp"
#include "bindings/torch/history.hpp"
#include "bindings/torch/memory.hpp"
#include "bindings/torch/plugged.hpp"
#include "bindings/torch/statistics.hpp"

namespace py = pybind11;

namespace arena::torch {
namespace {

int checked(int device) {
  if (device >= 0 && static_cast<std::size_t>(device) < kDevices) return device;
  throw UsageError("device=" + std::to_string(device) + " is not the number of a device");
}

py::tuple tuple_of(const Figure& figure) {
  return py::make_tuple(figure.current(), figure.peak(), figure.allocated(), figure.freed());
}

py::tuple statistics(int device) {
  const Statistics& its = statistics_of(checked(device));
  py::dict found;
  for (const auto& [kind, name] : {std::pair(Statistics::kAll, "all"), std::pair(Statistics::kLarge, "large_pool"),
                                   std::pair(Statistics::kSmall, "small_pool")}) {
    const Figures& figures = its.of(kind);
    found[name] = py::make_tuple(tuple_of(figures.bytes), tuple_of(figures.requested), tuple_of(figures.count));
  }
  return py::make_tuple(found, its.failures());
}

// Without the GIL: a thread that holds an arena's lock may be waiting for it.
std::pair<Bytes, Bytes> reserved(int device) {
  checked(device);
  if (is_inherited()) return {0, 0};
  Bytes now = 0, peak = 0;
  const WithoutGil released;
  for (const std::shared_ptr<Arena>& core : arenas_of(device)) {
    const Arena::Reserved its = core->reserved_and_peak();
    now += its.now;
    peak += its.peak;
  }
  return {now, peak};
}

const char* name_of(HistoryEvent::Action action) {
  switch (action) {
    case HistoryEvent::Action::kAlloc:
      return "alloc";
    case HistoryEvent::Action::kFreeRequested:
      return "free_requested";
    case HistoryEvent::Action::kFreeCompleted:
      return "free_completed";
    case HistoryEvent::Action::kOutOfMemory:
      return "oom";
    default:
      return "snapshot";
  }
}

py::list list_events() {
  py::list found;
  for (const HistoryEvent& event : history().events()) {
    found.append(py::make_tuple(name_of(event.action), event.device, event.address, event.size, event.stream,
                                lines::frames(event.line), event.time));
  }
  return found;
}

py::list list_pools() {
  std::vector<GraphPools::Owned> all;
  if (!is_inherited()) {
    const WithoutGil released;
    all = graph_pools().all();
  }
  py::list found;
  for (const GraphPools::Owned& one : all) {
    found.append(py::make_tuple(one.id, one.core->id(), one.is_own, one.ranges));
  }
  return found;
}

void bind_history(py::module_& module) {
  module.def(
      "start_torch_history", [](std::size_t most, bool clears) { history().start(most, clears); }, py::arg("most"),
      py::kw_only(), py::arg("clears"), "Keep the last events of PyTorch's memory, at most so many.");
  module.def("stop_torch_history", [] { history().stop(); }, "Keep none, and drop those that were kept.");
  module.def("is_torch_history_on", [] { return history().is_on(); }, "Whether events are kept.");
  module.def("torch_history", &list_events,
             "The events as (action, device, address, size, stream, lines, microseconds since 1970).");
}

}  // namespace

void bind_questions(py::module_& module) {
  bind_history(module);
  module.def("torch_statistics", &statistics, py::arg("device"),
             "By kind of request: (current, peak, allocated, freed) of bytes, requested bytes and the number of "
             "blocks; and the "
             "number of failures.");
  module.def(
      "torch_allocated", [](int device) { return statistics_of(checked(device)).of(Statistics::kAll).bytes.current(); },
      py::arg("device"), "Live bytes of PyTorch's.");
  module.def(
      "torch_peak_allocated",
      [](int device) { return statistics_of(checked(device)).of(Statistics::kAll).bytes.peak(); }, py::arg("device"),
      "Their peak.");
  module.def("torch_reserved", &reserved, py::arg("device"),
             "What the arenas of a device that PyTorch uses have reserved, and the sum of their peaks.");
  module.def(
      "reset_torch_peaks", [](int device) { reset_peaks_of(checked(device)); }, py::arg("device"),
      "Start the peaks again, also those of the arenas.");
  module.def(
      "reset_torch_totals", [](int device) { statistics_of(checked(device)).reset_totals(); }, py::arg("device"),
      "Start counting what is allocated and freed again.");
  module.def(
      "torch_arenas",
      [](int device) { return is_inherited() ? std::vector<std::shared_ptr<Arena>>{} : arenas_of(checked(device)); },
      py::arg("device"), "The cores of the arenas of a device that PyTorch took memory from.");
  module.def("torch_pools", &list_pools,
             "PyTorch's pools as (id, id of the arena, whether all its memory is the pool's, [(address, size)]).");
  module.def(
      "torch_lines", [](std::uintptr_t address) { return lines::frames(line_at(reinterpret_cast<void*>(address))); },
      py::arg("address"), "The lines that allocated the block at an address.");
}

}  // namespace arena::torch
