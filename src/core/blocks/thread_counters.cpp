#include "core/blocks/thread_counters.hpp"

#include <algorithm>

namespace arena {
namespace {

struct CountersOfArena {
  std::uint64_t owner = 0;
  std::shared_ptr<ThreadCounters> counters;
};

thread_local std::vector<CountersOfArena> counters_of_thread;

}  // namespace

ThreadCounters* PeakTracker::find_among_all() const {
  const auto it = std::find_if(counters_of_thread.begin(), counters_of_thread.end(),
                               [&](const CountersOfArena& c) { return c.owner == owner_; });
  if (it == counters_of_thread.end()) return nullptr;
  last_counters = {owner_, it->counters.get()};
  return last_counters.counters;
}

ThreadCounters& PeakTracker::make() {
  // Counters of destroyed arenas are referenced only by this thread.
  last_counters = {0, nullptr};
  std::erase_if(counters_of_thread, [](const CountersOfArena& c) { return c.counters.use_count() == 1; });
  all_.push_back(std::make_shared<ThreadCounters>());
  counters_of_thread.push_back({owner_, all_.back()});
  last_counters = {owner_, all_.back().get()};
  return *all_.back();
}

// Adds the counters of ended threads to the first thread's.
void PeakTracker::fold_ended() {
  ThreadCounters& first = *all_.front();
  for (std::size_t i = 1; i < all_.size(); ++i) {
    if (all_[i].use_count() > 1) continue;
    for (const auto figure : {&Sums::requested, &Sums::live, &Sums::blocks}) {
      first.sums_.*figure += all_[i]->sums_.*figure;
      first.share_.*figure += all_[i]->share_.*figure;
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
  divide_shares(counters, &Sums::requested);
  divide_shares(counters, &Sums::live);
}

void PeakTracker::restart_peak() {
  for (const auto& counters : all_) counters->share_ = counters->sums_;
  peak_ = sums();
}

// Every thread keeps the room that it had, or a proportional part if there is not enough. The rest goes to `asking`.
void PeakTracker::divide_shares(ThreadCounters& asking, std::int64_t Sums::* figure) {
  const auto room = [&](const ThreadCounters& counters) {
    return std::max<std::int64_t>(0, counters.share_.*figure - counters.sums_.*figure);
  };
  std::int64_t left = peak_.*figure, wanted = 0;
  for (const auto& counters : all_) {
    left -= counters->sums_.*figure;
    wanted += room(*counters);
  }
  const double part = wanted > left ? static_cast<double>(left) / static_cast<double>(wanted) : 1.0;
  for (const auto& counters : all_) {
    const auto scaled = static_cast<std::int64_t>(part * static_cast<double>(room(*counters)));
    const std::int64_t given = std::min(left, scaled);
    counters->share_.*figure = counters->sums_.*figure + given;
    left -= given;
  }
  asking.share_.*figure += left;
}

}  // namespace arena
