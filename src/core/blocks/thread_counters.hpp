// How much is live, and its peak. Both are exact, although each thread has its own counters.
//
// A thread's counters may rise up to its share of the peak. Beyond that, the arena adds up the counters of all threads,
// raises the peak if the sum exceeds it, and divides the peak into new shares. All shares together never exceed the
// peak, so no higher sum is missed.
//
// A thread writes its counters with the arena's lock or a cache's lock held (stream_cache.hpp). Everything else needs
// the arena's lock and the locks of all caches.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/types.hpp"

namespace arena {

// A thread's sums may be negative: it may free what other threads allocated.
struct Sums {
  std::int64_t requested = 0;
  std::int64_t live = 0;
  std::int64_t blocks = 0;
};

class ThreadCounters {
 public:
  // Whether a block can be added within the thread's share.
  bool has_room(Bytes requested, Bytes size) const {
    return sums_.requested + static_cast<std::int64_t>(requested) <= share_.requested &&
           sums_.live + static_cast<std::int64_t>(size) <= share_.live;
  }
  void add(Bytes requested, Bytes size) {
    sums_.requested += static_cast<std::int64_t>(requested);
    sums_.live += static_cast<std::int64_t>(size);
    ++sums_.blocks;
  }
  void remove(Bytes requested, Bytes size) {
    sums_.requested -= static_cast<std::int64_t>(requested);
    sums_.live -= static_cast<std::int64_t>(size);
    --sums_.blocks;
  }

 private:
  friend class PeakTracker;
  Sums sums_, share_;
};

// The counters that a thread last used. It has no constructor, so that reading it costs no initialisation check.
struct LastCounters {
  std::uint64_t owner;
  ThreadCounters* counters;
};
inline thread_local constinit LastCounters last_counters = {0, nullptr};

class PeakTracker {
 public:
  explicit PeakTracker(std::uint64_t owner) : owner_(owner) {}

  // The calling thread's counters; null if it has none yet. Needs no lock.
  ThreadCounters* find() const { return last_counters.owner == owner_ ? last_counters.counters : find_among_all(); }
  // The same, created if there are none. Needs the arena's lock.
  ThreadCounters& of_this_thread() {
    ThreadCounters* found = find();
    return found != nullptr ? *found : make();
  }

  Sums sums() const;
  const Sums& peak() const { return peak_; }
  void restart_peak();  // from what is live now
  // Adds a block beyond a thread's share, and divides the peak into new shares.
  void add(ThreadCounters& counters, Bytes requested, Bytes size);

 private:
  ThreadCounters* find_among_all() const;
  ThreadCounters& make();
  void fold_ended();
  void divide_shares(ThreadCounters& asking, std::int64_t Sums::* figure);

  const std::uint64_t owner_;  // the arena's id, never reused
  std::vector<std::shared_ptr<ThreadCounters>> all_;
  Sums peak_;
};

}  // namespace arena
