// What is in users' hands, and the highest that it ever was: exact, although threads count for themselves.
//
// Each thread counts what it hands out and takes back in a tally of its own, and may go up to its share of the highest
// sums so far. Only beyond that the arena looks at the tallies of all threads, raises the highest sums if that is what
// comes of it, and gives out new shares. All shares together never exceed the highest sums, so no higher one is missed.
//
// A thread writes its tally with the arena's lock held, or that of a front (front.hpp). All else is for those who hold the
// arena's and those of all fronts.
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

class Tally {
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
  friend class Tallies;
  Sums sums_, most_;
};

// The last that a thread asked for: without a constructor, so that it costs no more than a look.
struct LastTally {
  std::uint64_t owner;
  Tally* tally;
};
inline thread_local constinit LastTally last_tally = {0, nullptr};

class Tallies {
 public:
  explicit Tallies(std::uint64_t owner) : owner_(owner) {}

  // Of the thread that calls; null if it has none yet. Needs no lock.
  Tally* find() const { return last_tally.owner == owner_ ? last_tally.tally : find_among_all(); }
  // The same, made if there is none. With the arena's lock.
  Tally& mine() {
    Tally* found = find();
    return found != nullptr ? *found : make();
  }

  Sums sums() const;
  const Sums& peak() const { return peak_; }
  // Adds beyond a tally's share, and gives out new ones.
  void add(Tally& tally, Bytes requested, Bytes size);

 private:
  Tally* find_among_all() const;
  Tally& make();
  void fold_ended();
  void share(Tally& asking, std::int64_t Sums::* figure);

  const std::uint64_t owner_;  // never used twice
  std::vector<std::shared_ptr<Tally>> all_;
  Sums peak_;
};

}  // namespace arena
