// The scopes that a thread is in, and the graphs that it allocates for.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace arena {

// The number of all entries in all threads, including ended ones that their thread has not dropped yet. While it is 0,
// no thread needs to look.
inline std::atomic<int> entered_by_threads = 0;
inline bool is_any_entered() { return entered_by_threads.load(std::memory_order_relaxed) != 0; }

// The entries of one thread. An entry may be ended by another thread; this thread drops it when it next allocates.
template <typename Thing>
class EnteredByThread {
 public:
  EnteredByThread() = default;
  ~EnteredByThread() { entered_by_threads -= static_cast<int>(all_.size()); }
  EnteredByThread(const EnteredByThread&) = delete;
  EnteredByThread& operator=(const EnteredByThread&) = delete;

  void add(std::uint64_t owner, std::shared_ptr<Thing> thing) {
    all_.emplace_back(owner, std::move(thing));
    ++entered_by_threads;
  }
  std::shared_ptr<Thing> last_of(std::uint64_t owner) {
    if (!is_any_entered()) return nullptr;
    entered_by_threads -= static_cast<int>(std::erase_if(all_, [](const auto& e) { return e.second->has_ended(); }));
    const auto it = std::find_if(all_.rbegin(), all_.rend(), [&](const auto& e) { return e.first == owner; });
    return it == all_.rend() ? nullptr : it->second;
  }

 private:
  std::vector<std::pair<std::uint64_t, std::shared_ptr<Thing>>> all_;
};

}  // namespace arena
