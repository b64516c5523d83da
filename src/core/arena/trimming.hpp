// Releases memory to the driver.
#pragma once

#include "core/heap/heap.hpp"

namespace arena {

// How long to wait for memory that the device is about to be done with.
enum class Patience { kBrief, kLong };

// Releases free memory, down to `keep` reserved bytes. Does nothing while a stream is being captured.
void trim_to(Heap& heap, Bytes keep, Patience patience, Lock& lock);
// The same if the heap is over its limit, because the cap was lowered or the arena closed.
void trim_over_limit(Heap& heap, Lock& lock);
// Call this after the lock was released: if the arena was closed, it releases what was taken since and throws
// UsageError.
void check_still_open(Heap& heap, Lock& lock);

[[noreturn]] void throw_closed();

}  // namespace arena
