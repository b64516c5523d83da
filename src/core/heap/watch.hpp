// A snapshot of the moment when the most was live, and the account over time, for the report of a whole run.
//
// The peak is known only afterwards. So the heap takes a snapshot right before live bytes fall, if they have never been
// higher. The cost of a snapshot grows with the number of pieces. In a program that climbs in many small steps,
// snapshots are therefore taken less often, so that the average cost of an event is bounded; but always when live bytes
// have grown by 1/64, or by 1/16 if there are very many pieces. Memory is bounded, too: for each interval of time,
// three samples of the account are kept, where the most and the least was live, and where the most was reserved. When
// there are too many intervals, they become twice as long.
//
// The arena writes it with its lock held; other threads can read it at any time.
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
  using Time = std::int64_t;  // nanoseconds since the watch began
  struct Sample {
    Time at = 0;
    Stats stats = {};
  };
  struct Moment {
    Time at = 0;
    std::int64_t clock = 0;  // time of the steady clock, as in Snapshot::Piece::born
    Snapshot snapshot = {};
  };
  enum class Trend { kRising, kFalling };  // of live bytes

  Watch() : begin_(clock()) {}

  // Live bytes have just changed.
  void note_change(Trend trend) {
    trend_ = trend;
    last_ = clock();
  }
  // Whether the current state is an extreme, if live bytes go on with this trend.
  bool is_turning(Trend next) const { return trend_ != next; }
  // The time of the last change.
  Time last() const { return last_ - begin_; }
  std::int64_t last_on_clock() const { return last_; }
  Time now() const { return clock() - begin_; }

  // Whether a sample of these figures would be kept.
  bool wants(Time at, Bytes live, Bytes reserved) const;
  void add(const Sample& sample);
  // Whether more is live than at the moment kept, and a snapshot of so many pieces is not too expensive.
  bool wants_moment(Bytes live, std::size_t pieces);
  bool is_higher(Bytes live) const { return live > kept_live_; }
  void keep(Moment moment);

  // These need no lock.
  std::vector<Sample> samples() const;           // by time
  std::shared_ptr<const Moment> moment() const;  // null if nothing was ever live

 private:
  struct Interval {
    Time number = 0;  // its position in time, counted in intervals
    Sample most_live, least_live, most_reserved;
  };
  static constexpr std::size_t kMostIntervals = 1300;
  // A snapshot costs a credit of one per piece. Every turn of live bytes earns kCreditPerTurn, up to kInitialCredit.
  static constexpr std::size_t kCreditPerTurn = 8, kInitialCredit = 200000;
  static constexpr std::size_t kManyPieces = 50000;
  // Growth by 1/64, or by 1/16 with many pieces, is worth a snapshot without credit.
  static constexpr Bytes kSmallSteps = 64, kLargeSteps = 16;

  static std::int64_t clock() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  static void merge(Interval& into, const Interval& other);
  void double_intervals();

  const std::int64_t begin_;
  Trend trend_ = Trend::kFalling;
  std::int64_t last_ = begin_;
  Bytes kept_live_ = 0;
  std::size_t credit_ = kInitialCredit;
  mutable std::mutex mutex_;  // for the members below, which are read without the arena's lock
  Time length_ = 1'000'000;   // of an interval
  std::vector<Interval> intervals_;
  std::shared_ptr<const Moment> moment_;
};

}  // namespace arena
