// Finds out what the thread that allocates is doing.
#pragma once

#include <cstdint>

#include "ledger.hpp"

namespace arena::ledger {

// Call it before the allocator's lock is taken. `doing_now` has what it found, for this thread.
void look();
Doing doing_now(std::int64_t requested);

// The operation of this thread's last allocation.
std::uint64_t current_operation();

}  // namespace arena::ledger
