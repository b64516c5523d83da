#include "bindings/pool_state.hpp"

#include <pybind11/stl.h>

#include <algorithm>

#include "bindings/bindings.hpp"
#include "bindings/moving.hpp"
#include "bindings/standstill.hpp"

namespace py = pybind11;

namespace arena {

void PressureGauge::rearm_if_low(const Arena& core) {
  if (!rearm_ || state_.load(std::memory_order_relaxed) != State::kFired) return;
  if (static_cast<double>(read(core)) >= *rearm_ * static_cast<double>(core.cap())) return;
  State fired = State::kFired;
  state_.compare_exchange_strong(fired, State::kArmed);  // or another thread did it first
}

bool PressureGauge::is_due(const Arena& core) const {
  if (state_.load(std::memory_order_relaxed) != State::kArmed) return false;
  const Bytes figure = read(core), cap = core.cap();
  return figure >= cap || static_cast<double>(figure) > share_ * static_cast<double>(cap);
}

bool PressureGauge::begin(const Arena& core) {
  State armed = State::kArmed;
  return is_due(core) && state_.compare_exchange_strong(armed, State::kCalling);
}

PoolState::~PoolState() {
  for (GaugeNode* node = gauges_; node != nullptr;) delete std::exchange(node, node->next);
}

void PoolState::add_gauge(std::shared_ptr<PressureGauge> gauge) {
  const Watched watched = gauge->figure() == PressureGauge::Figure::kLive ? Watched::kAll : Watched::kMisses;
  auto* node = new GaugeNode{std::move(gauge), gauges_};
  while (!gauges_.compare_exchange_weak(node->next, node)) {
  }
  Watched before = watched_;
  while (before < watched && !watched_.compare_exchange_weak(before, watched)) {
  }
}

void PoolState::rearm_gauges() const {
  for (const GaugeNode* node = gauges_; node != nullptr; node = node->next) node->gauge->rearm_if_low(*core);
}

bool PoolState::has_due_gauge() const {
  for (const GaugeNode* node = gauges_; node != nullptr; node = node->next) {
    if (node->gauge->is_due(*core)) return true;
  }
  return false;
}

void PoolState::expect_moving() {
  if (!is_auto_compact_) return;
  core->expect_moving(moving_if(is_only_thread()));
}

bool PoolState::has_other_threads() {
  if (!is_auto_compact_) return false;
  const int now = thread_count();
  return now == 0 || threads_.exchange(now, std::memory_order_relaxed) != now;
}

void bind_pool_state(py::module_& module) {
  py::class_<PressureGauge, std::shared_ptr<PressureGauge>>(module, "PressureGauge",
                                                            "When an on_pressure() function is due.")
      .def(py::init([](double share, bool is_live, std::optional<double> rearm) {
             using enum PressureGauge::Figure;
             return std::make_shared<PressureGauge>(share, is_live ? kLive : kReserved, rearm);
           }),
           py::arg("share"), py::kw_only(), py::arg("is_live"), py::arg("rearm"))
      .def("rearm_if_low", &PressureGauge::rearm_if_low, py::arg("core"), py::call_guard<WithoutGil>(),
           "Notice that the figure has fallen.")
      .def("begin", &PressureGauge::begin, py::arg("core"), py::call_guard<WithoutGil>(),
           "Whether the function is due. If so, call it and then end(); no other thread does.")
      .def("end", &PressureGauge::end, "Note that the function was called.");
  py::class_<PoolState, std::shared_ptr<PoolState>>(module, "PoolState", "What the core knows of an arena.Arena.")
      .def(py::init([](std::shared_ptr<Arena> core, bool is_simulated, bool is_auto_compact, bool expects_vmm) {
             return std::make_shared<PoolState>(std::move(core),
                                                PoolState::Options{.is_simulated = is_simulated,
                                                                   .is_auto_compact = is_auto_compact,
                                                                   .expects_virtual_memory = expects_vmm});
           }),
           py::arg("core"), py::kw_only(), py::arg("is_simulated"), py::arg("is_auto_compact"),
           py::arg("expects_virtual_memory"))
      .def_property_readonly("expects_virtual_memory", &PoolState::expects_virtual_memory,
                             "Whether Python has yet to warn if the platform refuses virtual memory.")
      .def("stop_expecting_virtual_memory", &PoolState::stop_expecting_virtual_memory,
           "Expect no virtual memory any more; whether it was expected until now.")
      .def("add_gauge", &PoolState::add_gauge, py::arg("gauge"),
           "Call the arena's _fire_pressure() after each request that lets this gauge be due.");
}

}  // namespace arena
