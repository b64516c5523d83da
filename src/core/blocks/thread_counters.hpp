// How much is live, and the peak of that: exact, although each thread counts for itself.
//
// Each thread has counters of its own, and may go up to its share of the peak. Beyond that, the arena adds up the counters of
// all threads, raises the peak if the sum exceeds it, and gives out new shares. All shares together never exceed the peak, so
// no higher sum is missed.
//
// A thread writes its counters with the arena's lock held, or a cache's (stream_cache.hpp). Everything else needs the arena's
// lock and those of all caches.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/types.hpp"

namespace arena {

// Of one thread they may be below 0: it takes back what others handed out.
struct Sums {
  std::int64_t requested = 0;
  std::int64_t live = 0;
  std::int64_t blocks = 0;
};

class ThreadCounters {
 public:
  // Whether the highest sums are not exceeded with so much more.
  bool has_room(Bytes requested, Bytes size) const {
    return sums_.requested + static_cast<std::int64_t>(requested) <= most_.requested &&
           sums_.live + static_cast<std::int64_t>(size) <= most_.live;
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
  Sums sums_, most_;
};

// The last that a thread asked for: without a constructor, so that it costs no more than a look.
struct LastCounters {
  std::uint64_t owner;
  ThreadCounters* counters;
};
inline thread_local constinit LastCounters last_counters = {0, nullptr};

class PeakTracker {
 public:
  explicit PeakTracker(std::uint64_t owner) : owner_(owner) {}

  // Of the thread that calls; null if it has none yet. Needs no lock.
  ThreadCounters* find() const { return last_counters.owner == owner_ ? last_counters.counters : find_among_all(); }
  // The same, made if there is none. With the arena's lock.
  ThreadCounters& of_this_thread() {
    ThreadCounters* found = find();
    return found != nullptr ? *found : make();
  }

  Sums sums() const;
  const Sums& peak() const { return peak_; }
  // Adds beyond a thread's share, and gives out new shares.
  void add(ThreadCounters& counters, Bytes requested, Bytes size);

 private:
  ThreadCounters* find_among_all() const;
  ThreadCounters& make();
  void fold_ended();
  void share(ThreadCounters& asking, std::int64_t Sums::* figure);

  const std::uint64_t owner_;  // never used twice
  std::vector<std::shared_ptr<ThreadCounters>> all_;
  Sums peak_;
};

}  // namespace arena
