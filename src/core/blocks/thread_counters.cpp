#include "core/blocks/thread_counters.hpp"

#include <algorithm>

namespace arena {
namespace {

struct Mine {
  std::uint64_t owner = 0;
  std::shared_ptr<ThreadCounters> counters;
};

thread_local std::vector<Mine> every;  // of all owners

}  // namespace

ThreadCounters* PeakTracker::find_among_all() const {
  const auto it = std::find_if(every.begin(), every.end(), [&](const Mine& m) { return m.owner == owner_; });
  if (it == every.end()) return nullptr;
  last_counters = {owner_, it->counters.get()};
  return last_counters.counters;
}

ThreadCounters& PeakTracker::make() {
  // Only this thread still knows counters of arenas that are gone.
  last_counters = {0, nullptr};
  std::erase_if(every, [](const Mine& m) { return m.counters.use_count() == 1; });
  all_.push_back(std::make_shared<ThreadCounters>());
  every.push_back({owner_, all_.back()});
  last_counters = {owner_, all_.back().get()};
  return *all_.back();
}

// What threads have counted that are no more is counted by the first of those that are.
void PeakTracker::fold_ended() {
  ThreadCounters& heir = *all_.front();
  for (std::size_t i = 1; i < all_.size(); ++i) {
    if (all_[i].use_count() > 1) continue;
    for (const auto figure : {&Sums::requested, &Sums::live, &Sums::blocks}) {
      heir.sums_.*figure += all_[i]->sums_.*figure;
      heir.most_.*figure += all_[i]->most_.*figure;
    }
    all_[i] = nullptr;
  }
  std::erase(all_, nullptr);
}

Sums PeakTracker::sums() const {
  Sums total;
  for (const auto& counters : all_) {
    for (const auto figure : {&Sums::requested, &Sums::live, &Sums::blocks}) total.*figure += counters->sums_.*figure;
  }
  return total;
}

void PeakTracker::add(ThreadCounters& counters, Bytes requested, Bytes size) {
  fold_ended();
  counters.add(requested, size);
  const Sums total = sums();
  peak_.requested = std::max(peak_.requested, total.requested);
  peak_.live = std::max(peak_.live, total.live);
  share(counters, &Sums::requested);
  share(counters, &Sums::live);
}

// To each thread what it had before, if there is so much, and what is left to the one that asked; else parts of that.
void PeakTracker::share(ThreadCounters& asking, std::int64_t Sums::* figure) {
  const auto wish = [&](const ThreadCounters& counters) {
    return std::max<std::int64_t>(0, counters.most_.*figure - counters.sums_.*figure);
  };
  std::int64_t left = peak_.*figure, wished = 0;
  for (const auto& counters : all_) {
    left -= counters->sums_.*figure;
    wished += wish(*counters);
  }
  const double part = wished > left ? static_cast<double>(left) / static_cast<double>(wished) : 1.0;
  for (const auto& counters : all_) {
    const auto wanted = static_cast<std::int64_t>(part * static_cast<double>(wish(*counters)));
    const std::int64_t given = std::min(left, wanted);
    counters->most_.*figure = counters->sums_.*figure + given;
    left -= given;
  }
  asking.most_.*figure += left;
}

}  // namespace arena
