#include "bindings/failure.hpp"

#include <pybind11/stl.h>

#include <optional>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/snapshots.hpp"

namespace py = pybind11;

namespace arena {
namespace {

std::optional<std::vector<std::uint64_t>> serials_in_scope(const RequestFailure& failed) {
  if (!failed.failure.budget) return std::nullopt;
  return failed.failure.budget->serials;
}

py::object snapshot_at(const RequestFailure& failed) {
  if (!failed.failure.snapshot) return py::none();
  return dict_of(*failed.failure.snapshot, steady_now());
}

// Without anything to move, and during a capture, the request would have failed either way.
bool depends_on_moving(const RequestFailure& failed) {
  return failed.failure.stats.compactable > 0 && failed.failure.verdict != Verdict::kCapturing;
}

}  // namespace

void bind_failure(py::module_& module) {
  py::class_<RequestFailure>(module, "Failure", "Why a request failed, all as of one moment.")
      .def_property_readonly(
          "headline", [](const RequestFailure& failed) { return failed.failure.headline(); },
          "The first line of the error.")
      .def_property_readonly(
          "requested", [](const RequestFailure& failed) { return failed.failure.requested; },
          "The bytes that were requested, as far as the core can count.")
      .def_property_readonly(
          "largest", [](const RequestFailure& failed) { return failed.failure.largest; },
          "The largest request that would have passed.")
      .def_property_readonly(
          "scope",
          [](const RequestFailure& failed) { return failed.failure.budget ? failed.failure.budget->scope : ""; },
          "The scope whose budget was reached; empty if none was.")
      .def_property_readonly(
          "could_move", [](const RequestFailure& failed) { return failed.failure.could_move; },
          "Whether live data could be moved for it.")
      .def_property_readonly("depends_on_moving", &depends_on_moving,
                             "Whether moving live data could have made a difference.")
      .def_property_readonly("in_scope", &serials_in_scope,
                             "The serials of the blocks in the scope whose budget was reached; None if none was.")
      .def("snapshot", &snapshot_at, "Everything there was at that moment; None if the request was tried again.")
      .def(
          "error",
          [](const RequestFailure& failed, py::str moving, py::str line, py::tuple holders) {
            return out_of_memory(failed,
                                 {.moving = std::move(moving), .line = std::move(line), .holders = std::move(holders)});
          },
          py::kw_only(), py::arg("moving") = "", py::arg("line") = "", py::arg("holders") = py::tuple(),
          "Build the OutOfMemoryError of this request.");
}

}  // namespace arena
