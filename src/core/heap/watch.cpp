#include "core/heap/watch.hpp"

#include <algorithm>
#include <utility>

namespace arena {

bool Watch::wants(Time at, Bytes live, Bytes reserved) const {
  if (intervals_.empty() || intervals_.back().number != at / length_) return true;
  const Interval& s = intervals_.back();
  return live > s.most_live.stats.live || live < s.least_live.stats.live || reserved > s.most_reserved.stats.reserved;
}

void Watch::merge(Interval& into, const Interval& other) {
  if (other.most_live.stats.live > into.most_live.stats.live) into.most_live = other.most_live;
  if (other.least_live.stats.live < into.least_live.stats.live) into.least_live = other.least_live;
  if (other.most_reserved.stats.reserved > into.most_reserved.stats.reserved) into.most_reserved = other.most_reserved;
}

void Watch::add(const Sample& sample) {
  const std::lock_guard held(mutex_);
  const Interval one{.number = sample.at / length_, .most_live = sample, .least_live = sample, .most_reserved = sample};
  if (!intervals_.empty() && intervals_.back().number >= one.number) {
    merge(intervals_.back(), one);
    return;
  }
  intervals_.push_back(one);
  if (intervals_.size() > kMostIntervals) double_intervals();
}

void Watch::double_intervals() {
  length_ *= 2;
  std::vector<Interval> longer;
  for (Interval& interval : intervals_) {
    interval.number /= 2;
    if (!longer.empty() && longer.back().number == interval.number) {
      merge(longer.back(), interval);
    } else {
      longer.push_back(interval);
    }
  }
  intervals_ = std::move(longer);
}

bool Watch::wants_moment(Bytes live, std::size_t pieces) {
  credit_ = std::min(credit_ + kCreditPerTurn, kInitialCredit);
  if (!is_higher(live)) return false;
  const Bytes step = kept_live_ / (pieces > kManyPieces ? kLargeSteps : kSmallSteps);
  if (pieces > credit_ && live - kept_live_ < step) return false;
  credit_ -= std::min(credit_, pieces);
  return true;
}

void Watch::keep(Moment moment) {
  kept_live_ = moment.snapshot.stats.live;
  auto kept = std::make_shared<const Moment>(std::move(moment));
  const std::lock_guard held(mutex_);
  moment_.swap(kept);
}

std::vector<Watch::Sample> Watch::samples() const {
  std::vector<Sample> found;
  {
    const std::lock_guard held(mutex_);
    found.reserve(3 * intervals_.size());
    for (const Interval& s : intervals_) found.insert(found.end(), {s.most_live, s.least_live, s.most_reserved});
  }
  std::stable_sort(found.begin(), found.end(), [](const Sample& a, const Sample& b) { return a.at < b.at; });
  const auto is_same = [](const Sample& a, const Sample& b) {
    return a.at == b.at && a.stats.live == b.stats.live && a.stats.reserved == b.stats.reserved;
  };
  found.erase(std::unique(found.begin(), found.end(), is_same), found.end());
  return found;
}

std::shared_ptr<const Watch::Moment> Watch::moment() const {
  const std::lock_guard held(mutex_);
  return moment_;
}

}  // namespace arena
