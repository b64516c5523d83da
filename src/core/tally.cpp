#include "core/tally.hpp"

#include <algorithm>

namespace arena {
namespace {

struct Mine {
  std::uint64_t owner = 0;
  std::shared_ptr<Tally> tally;
};

thread_local std::vector<Mine> every;  // of all owners

}  // namespace

Tally* Tallies::find_among_all() const {
  const auto it = std::find_if(every.begin(), every.end(), [&](const Mine& m) { return m.owner == owner_; });
  if (it == every.end()) return nullptr;
  last_tally = {owner_, it->tally.get()};
  return last_tally.tally;
}

Tally& Tallies::make() {
  // Nobody else knows the tallies of arenas that are gone.
  last_tally = {0, nullptr};
  std::erase_if(every, [](const Mine& m) { return m.tally.use_count() == 1; });
  all_.push_back(std::make_shared<Tally>());
  every.push_back({owner_, all_.back()});
  last_tally = {owner_, all_.back().get()};
  return *all_.back();
}

// What threads have counted that are no more is counted by the first of those that are.
void Tallies::fold_ended() {
  Tally& heir = *all_.front();
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

Sums Tallies::sums() const {
  Sums total;
  for (const auto& tally : all_) {
    for (const auto figure : {&Sums::requested, &Sums::live, &Sums::blocks}) total.*figure += tally->sums_.*figure;
  }
  return total;
}

void Tallies::add(Tally& tally, Bytes requested, Bytes size) {
  fold_ended();
  tally.add(requested, size);
  const Sums total = sums();
  peak_.requested = std::max(peak_.requested, total.requested);
  peak_.live = std::max(peak_.live, total.live);
  share(tally, &Sums::requested);
  share(tally, &Sums::live);
}

// To each thread what it had before, if there is so much, and what is left to the one that asked; else parts of that.
void Tallies::share(Tally& asking, std::int64_t Sums::* figure) {
  const auto wish = [&](const Tally& tally) {
    return std::max<std::int64_t>(0, tally.most_.*figure - tally.sums_.*figure);
  };
  std::int64_t left = peak_.*figure, wished = 0;
  for (const auto& tally : all_) {
    left -= tally->sums_.*figure;
    wished += wish(*tally);
  }
  const double part = wished > left ? static_cast<double>(left) / static_cast<double>(wished) : 1.0;
  for (const auto& tally : all_) {
    const auto wanted = static_cast<std::int64_t>(part * static_cast<double>(wish(*tally)));
    const std::int64_t given = std::min(left, wanted);
    tally->most_.*figure = tally->sums_.*figure + given;
    left -= given;
  }
  asking.most_.*figure += left;
}

}  // namespace arena
