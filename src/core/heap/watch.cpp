#include "core/heap/watch.hpp"

#include <algorithm>
#include <utility>

namespace arena {

bool Watch::wants(Time at, Bytes live, Bytes reserved) const {
  if (stretches_.empty() || stretches_.back().number != at / length_) return true;
  const Stretch& s = stretches_.back();
  return live > s.most_live.stats.live || live < s.least_live.stats.live || reserved > s.most_reserved.stats.reserved;
}

void Watch::merge(Stretch& into, const Stretch& other) {
  if (other.most_live.stats.live > into.most_live.stats.live) into.most_live = other.most_live;
  if (other.least_live.stats.live < into.least_live.stats.live) into.least_live = other.least_live;
  if (other.most_reserved.stats.reserved > into.most_reserved.stats.reserved) into.most_reserved = other.most_reserved;
}

void Watch::add(const Sample& sample) {
  const std::lock_guard held(mutex_);
  const Stretch one{sample.at / length_, sample, sample, sample};
  if (!stretches_.empty() && stretches_.back().number >= one.number) {
    merge(stretches_.back(), one);
    return;
  }
  stretches_.push_back(one);
  if (stretches_.size() > kMost) lengthen();
}

void Watch::lengthen() {
  length_ *= 2;
  std::vector<Stretch> longer;
  for (Stretch& stretch : stretches_) {
    stretch.number /= 2;
    if (!longer.empty() && longer.back().number == stretch.number) {
      merge(longer.back(), stretch);
    } else {
      longer.push_back(stretch);
    }
  }
  stretches_ = std::move(longer);
}

bool Watch::wants_moment(Bytes live, std::size_t pieces) {
  credit_ = std::min(credit_ + kPerTurn, kAtFirst);
  if (!is_higher(live)) return false;
  const Bytes much = kept_live_ / (pieces > kMany ? kGrowthOfMany : kGrowth);
  if (pieces > credit_ && live - kept_live_ < much) return false;
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
    found.reserve(3 * stretches_.size());
    for (const Stretch& s : stretches_) found.insert(found.end(), {s.most_live, s.least_live, s.most_reserved});
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
