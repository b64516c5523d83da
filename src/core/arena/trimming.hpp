// Giving memory back to the driver.
#pragma once

#include "core/heap/heap.hpp"

namespace arena {

// How long to wait for what the device is about to be done with.
enum class Patience { kBrief, kLong };

// Gives back what is free, down to `keep` bytes reserved. Nothing is unmapped while a stream is being captured.
void trim_to(Heap& heap, Bytes keep, Patience patience, Lock& lock);
// The same where the heap is over its limit, because the cap was lowered or the arena closed.
void trim_over_limit(Heap& heap, Lock& lock);
// After the lock was released: throws UsageError if the arena was closed, and gives back what was taken since.
void check_still_open(Heap& heap, Lock& lock);

[[noreturn]] void throw_closed();

}  // namespace arena
