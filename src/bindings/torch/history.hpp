// What PyTorch allocated and freed, for torch.cuda.memory._record_memory_history(): the last events, while it is on.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "core/types.hpp"

namespace arena::torch {

struct HistoryEvent {
  enum class Action : std::uint8_t { kAlloc, kFreeRequested, kFreeCompleted, kOutOfMemory, kSnapshot };
  Action action = Action::kAlloc;
  std::uint64_t address = 0;  // for kOutOfMemory, how much the device has left
  Bytes size = 0;
  std::uint64_t stream = 0;
  Line line = 0;
  std::int64_t time = 0;  // microseconds since 1970
  int device = 0;
};

class History {
 public:
  // At most so many events are kept, the last ones. What was kept before is dropped if `clears`.
  void start(std::size_t most, bool clears);
  void stop();  // drops everything
  bool is_on() const { return on_.load(std::memory_order_relaxed); }
  // Its time is now.
  void add(HistoryEvent event);
  std::vector<HistoryEvent> events() const;

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> on_ = false;
  std::size_t most_ = 0;
  std::deque<HistoryEvent> events_;
};

History& history();

}  // namespace arena::torch
