#include "core/locks.hpp"

#include <thread>

namespace arena {

// Spins while the holder is running, then yields in case it was preempted.
void SpinLock::wait() {
  for (int i = 0; taken_.load(std::memory_order_relaxed); ++i) {
    if (i > 100) std::this_thread::yield();
  }
}

}  // namespace arena
