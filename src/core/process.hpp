// Detects forks. A child has copies of locks that are never released, and of addresses that the driver does not let it
// use.
#pragma once

#include <atomic>
#include <cstdint>

namespace arena {

inline std::atomic<std::uint32_t> fork_count = 0;  // changes only in a child, while it has one thread

// Between the process that loaded the library and the current one. Every request asks.
inline std::uint32_t forks() { return fork_count.load(std::memory_order_relaxed); }

}  // namespace arena
