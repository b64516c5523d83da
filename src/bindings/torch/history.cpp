#include "bindings/torch/history.hpp"

#include <chrono>

namespace arena::torch {

void History::start(std::size_t most, bool clears) {
  const std::lock_guard lock(mutex_);
  if (clears) events_.clear();
  most_ = most;
  while (events_.size() > most_) events_.pop_front();
  on_ = true;
}

void History::stop() {
  const std::lock_guard lock(mutex_);
  on_ = false;
  events_ = {};
}

void History::add(HistoryEvent event) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  event.time = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  const std::lock_guard lock(mutex_);
  if (!on_ || most_ == 0) return;
  if (events_.size() == most_) events_.pop_front();
  events_.push_back(event);
}

std::vector<HistoryEvent> History::events() const {
  const std::lock_guard lock(mutex_);
  return {events_.begin(), events_.end()};
}

History& history() {
  static auto& one = *new History;
  return one;
}

}  // namespace arena::torch
