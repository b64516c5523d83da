#include "bindings/torch/statistics.hpp"

#include <thread>

namespace arena::torch {

void Statistics::wait() const {
  constexpr int kSpins = 100;
  for (int i = 0; i < kSpins; ++i) {
    if (!locked_.load(std::memory_order_relaxed)) return;
  }
  std::this_thread::yield();
}

void Statistics::reset_peaks() {
  const Held held(*this);
  for (Figures& figures : figures_) figures.each([](Figure& figure) { figure.reset_peak(); });
}

void Statistics::reset_totals() {
  const Held held(*this);
  for (Figures& figures : figures_) figures.each([](Figure& figure) { figure.reset_totals(); });
  failures_.store(0, std::memory_order_relaxed);
}

Statistics& statistics_of(int device) {
  static auto& all = *new std::array<Statistics, kDevices>;
  return all[static_cast<std::size_t>(device)];
}

}  // namespace arena::torch
