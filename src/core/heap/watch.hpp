// What an arena held when the most was live, and its account over time, for the report of a whole run.
//
// The peak is known only afterwards. So the heap is inspected right before live bytes fall, if they
// were never higher. A look at everything costs as much as there are pieces; where a program climbs in many small steps it
// is taken once in a while, so that an event costs a bounded time on average, and at least whenever live bytes have grown
// by a 64th, or by a 16th where there are very many pieces. Memory is bounded, too: of each stretch of time three samples of the account are kept, where the most and the
// least was live, and where the most was reserved. When there are too many stretches, they become twice as long.
//
// The arena calls it with its lock held; others read it at any time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/heap/account.hpp"
#include "core/types.hpp"

namespace arena {

class Watch {
 public:
  using Time = std::int64_t;  // nanoseconds since the beginning
  struct Sample {
    Time at = 0;
    Stats stats = {};
  };
  struct Moment {
    Time at = 0;
    std::int64_t clock = 0;  // the steady clock's, as in Snapshot::Piece::born
    Snapshot snapshot = {};
  };
  enum class Trend { kRising, kFalling };  // of live bytes

  Watch() : begin_(clock()) {}

  // Live bytes have just changed.
  void note_change(Trend trend) {
    trend_ = trend;
    last_ = clock();
  }
  // Whether what is there now is an extreme, if live bytes go on like this.
  bool is_turning(Trend next) const { return trend_ != next; }
  // When it came to what is there now.
  Time last() const { return last_ - begin_; }
  std::int64_t last_on_clock() const { return last_; }
  Time now() const { return clock() - begin_; }

  // Whether a sample of these figures would be kept.
  bool wants(Time at, Bytes live, Bytes reserved) const;
  void add(const Sample& sample);
  // Whether more was live than at the moment that is kept, and a look at so many pieces is not too dear.
  bool wants_moment(Bytes live, std::size_t pieces);
  bool is_higher(Bytes live) const { return live > kept_live_; }
  void keep(Moment moment);

  // For anybody.
  std::vector<Sample> samples() const;           // by time
  std::shared_ptr<const Moment> moment() const;  // null if nothing was ever live

 private:
  struct Stretch {
    Time number = 0;  // its place in time, counted in stretches
    Sample most_live, least_live, most_reserved;
  };
  static constexpr std::size_t kMost = 1300;       // stretches
  static constexpr std::size_t kPerTurn = 8;       // pieces that a look may have, for each turn that went before it
  static constexpr std::size_t kAtFirst = 200000;  // the same without any
  static constexpr std::size_t kMany = 50000;      // pieces
  static constexpr Bytes kGrowth = 64, kGrowthOfMany = 16;  // of so many parts one more: worth a look at any price

  static std::int64_t clock() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  static void merge(Stretch& into, const Stretch& other);
  void lengthen();

  const std::int64_t begin_;
  Trend trend_ = Trend::kFalling;
  std::int64_t last_ = begin_;
  Bytes kept_live_ = 0;
  std::size_t credit_ = kAtFirst;
  mutable std::mutex mutex_;  // what follows is read without the arena's lock
  Time length_ = 1'000'000;   // of a stretch
  std::vector<Stretch> stretches_;
  std::shared_ptr<const Moment> moment_;
};

}  // namespace arena
