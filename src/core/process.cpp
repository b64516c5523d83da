#include "core/process.hpp"

#include <atomic>

#if __has_include(<pthread.h>)
#include <pthread.h>
#endif

namespace arena {
namespace {

std::atomic<std::uint32_t> count = 0;  // changes only in a child, while it has one thread

#if __has_include(<pthread.h>)
const int registered = pthread_atfork(nullptr, nullptr, [] { ++count; });
#endif

}  // namespace

std::uint32_t forks() { return count.load(std::memory_order_relaxed); }

}  // namespace arena
