// Waits for the device, and drops streams that are done.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "core/heap/heap.hpp"

namespace arena {

// Waits until streams are done with memory freed so far, but not for memory that other threads free during the wait.
// Gives up after `longest`: a device that waits for this thread would never be done.
void wait_for_pending(Heap& heap, Lock& lock, std::chrono::nanoseconds longest);
// Waits without the lock. False if a stream is being captured, which a wait would invalidate.
bool wait_for_device(Heap& heap, Lock& lock);
// The same with the lock held, and for all devices: for callers that are about to move or unmap live memory.
bool synchronize_now(Heap& heap);
// Polls without holding the lock in between. False if the device is still busy at the deadline.
bool wait_until_idle(Heap& heap, Lock& lock, std::chrono::steady_clock::time_point deadline);

// Drops streams that are done and have no blocks. Returns their owners, to be destroyed without the lock: that may run
// anything.
std::vector<std::shared_ptr<void>> drop_idle_streams(Heap& heap);

}  // namespace arena
