// Waiting for the device, and what else streams are asked.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "core/heap/heap.hpp"

namespace arena {

// Waits until streams are done with what was freed, but no longer than that. Other threads may free more meanwhile. A device
// that waits for this thread would never be done.
void wait_for_pending(Heap& heap, Lock& lock, std::chrono::nanoseconds longest);
// Without the lock. False if a stream is being captured, which would not survive it.
bool wait_for_device(Heap& heap, Lock& lock);
// The same with the lock held, and for all devices: for callers that are about to move or unmap live memory.
bool synchronize_now(Heap& heap);
// Sleeps without the lock. Leaves a busy device alone when the time is up.
bool wait_until_idle(Heap& heap, Lock& lock, std::chrono::steady_clock::time_point deadline);

// Forgets streams that are done and have no blocks. Returns their owners, to be dropped without the lock: that may run
// anything.
std::vector<std::shared_ptr<void>> drop_idle_streams(Heap& heap);

}  // namespace arena
