// The tree of gaps against a list that is searched exhaustively.
#include "core/space/gaps.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <random>

#include "native/check.hpp"

namespace arena {
namespace {

constexpr Bytes kGranule = 8 * kAlignment;
constexpr Granules kGranules = 32;
constexpr Offset kEnd = kGranules * kGranule;

// The same by brute force.
class Model {
 public:
  void add(Offset begin, Offset end) {
    if (const auto after = free_.find(end); after != free_.end()) {
      end = after->second;
      free_.erase(after);
    }
    if (auto before = free_.lower_bound(begin); before != free_.begin() && (--before)->second == begin) {
      begin = before->first;
    }
    free_[begin] = end;
  }
  void take(Offset begin, Offset end) {
    auto gap = --free_.upper_bound(begin);
    const Offset first = gap->first, last = gap->second;
    CHECK(first <= begin && end <= last);
    free_.erase(gap);
    if (first < begin) free_[first] = begin;
    if (end < last) free_[end] = last;
  }
  Granules new_granules(Offset begin, Offset end) const {
    Granules count = 0;
    for (Granules g = begin / kGranule; g * kGranule < end; ++g) {
      const auto after = free_.upper_bound(g * kGranule);
      count += after != free_.begin() && std::prev(after)->second >= (g + 1) * kGranule;
    }
    return count;
  }
  // The fewest new granules that a request can touch, and the lowest gap where it does; ~0 if there is no room.
  std::pair<Granules, Offset> best(Bytes size) const {
    std::pair<Granules, Offset> found{~Granules{0}, 0};
    for (const auto& [begin, end] : free_) {
      for (Offset at = begin; at + size <= end; at += kAlignment) {
        found = std::min(found, {new_granules(at, at + size), begin});
      }
    }
    return found;
  }
  Bytes largest_gap() const {
    Bytes largest = 0;
    for (const auto& [begin, end] : free_) largest = std::max(largest, end - begin);
    return largest;
  }
  // By bisection: where a request fits, so does a smaller one.
  Bytes largest(Granules new_ones) const {
    Bytes low = 0, high = kEnd + kAlignment;
    while (high - low > kAlignment) {
      const Bytes size = low + round_down((high - low) / 2, kAlignment);
      (best(size).first <= new_ones ? low : high) = size;
    }
    return low;
  }
  // How many granules of a range cost something.
  using Costly = std::vector<bool>;  // by granule; all beyond its end cost
  static Granules cost(Offset begin, Offset end, const Costly& costly) {
    Granules count = 0;
    for (Granules g = begin / kGranule; g * kGranule < end; ++g) count += g >= costly.size() || costly[g];
    return count;
  }
  Granules least_cost(Bytes size, const Costly& costly) const {
    Granules least = ~Granules{0};
    for (const auto& [begin, end] : free_) {
      for (Offset at = begin; at + size <= end; at += kAlignment) least = std::min(least, cost(at, at + size, costly));
    }
    return least;
  }
  Bytes largest(Granules budget, const Costly& costly) const {
    Bytes low = 0, high = kEnd + kAlignment;
    while (high - low > kAlignment) {
      const Bytes size = low + round_down((high - low) / 2, kAlignment);
      (least_cost(size, costly) <= budget ? low : high) = size;
    }
    return low;
  }
  const std::map<Offset, Offset>& all() const { return free_; }

 private:
  std::map<Offset, Offset> free_ = {{0, kEnd}};
};

void check_same(const Gaps& gaps, const Model& model) {
  CHECK(gaps.consistent());
  std::map<Offset, Offset> found;
  gaps.each([&](const Gap& gap) { found[gap.begin] = gap.end; });
  CHECK(found == model.all() && found.size() == gaps.count());
}

void check_best(const Gaps& gaps, const Model& model, Bytes size) {
  const auto place = gaps.find(size);
  const auto [fewest, gap] = model.best(size);
  CHECK(place.has_value() == (fewest != ~Granules{0}));
  if (!place) return;
  CHECK(place->new_granules == fewest && model.new_granules(place->offset, place->offset + size) == fewest);
  const auto in = --model.all().upper_bound(place->offset);
  CHECK(in->first == gap && place->offset + size <= in->second);
}

Bytes some_size(std::mt19937& chance) {
  const Bytes most = chance() % 4 == 0 ? 4 * kGranule : 2 * kGranule / (1 + chance() % 8);
  return kAlignment * (1 + chance() % (most / kAlignment));
}

struct Run {
  std::mt19937 chance;
  Gaps gaps{kGranule, [](Mark) { return false; }};
  Model model;
  std::vector<std::pair<Offset, Offset>> blocks;

  explicit Run(unsigned seed) : chance(seed) { gaps.add({0, kEnd}, {}); }

  void take() {
    const Bytes size = some_size(chance);
    check_best(gaps, model, size);
    const auto place = gaps.find(size);
    if (!place) return;
    const Offset end = place->offset + size;
    if (chance() % 2 == 0) {
      gaps.take(*place, size);
    } else {
      gaps.take(place->offset, size);
    }
    model.take(place->offset, end);
    blocks.emplace_back(place->offset, end);
  }
  std::pair<Offset, Offset> some_block() {
    std::swap(blocks[chance() % blocks.size()], blocks.back());
    return blocks.back();
  }
  void add() {
    const auto [begin, end] = some_block();
    gaps.add({begin, end}, Marks({static_cast<StreamIndex>(chance() % 3), 1}));
    model.add(begin, end);
    blocks.pop_back();
  }
  // As inspections do: adds a range, undoes that, and nothing has changed.
  void add_and_restore() {
    const auto [begin, end] = some_block();
    const Gaps::Adjacent adjacent = gaps.adjacent_to(begin, end);
    gaps.add({begin, end}, {});
    gaps.undo_add(begin, adjacent);
  }
};

TEST(gaps_finds_the_lowest_place_with_the_fewest_new_granules) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    Run run(seed);
    for (int step = 0; step < 300; ++step) {
      const unsigned what = run.chance() % 16;
      if (what < 8 || run.blocks.empty()) {
        run.take();
      } else if (what < 14) {
        run.add();
      } else {
        run.add_and_restore();
      }
      check_same(run.gaps, run.model);
      CHECK(run.gaps.largest_gap() == run.model.largest_gap());
      if (step % 64 == 0) {
        for (Granules n = 0; n < 3; ++n) CHECK(run.gaps.largest(n) == run.model.largest(n));
      }
    }
  }
}

// The caller decides which granules cost: here a random choice, including touched ones.
void check_cheapest(Run& run) {
  Model::Costly costly(run.chance() % kGranules);
  const unsigned share = 1 + run.chance() % 4;
  for (std::size_t g = 0; g < costly.size(); ++g) costly[g] = run.chance() % share == 0;
  const Gaps::Costs costs = [&](Granules g) { return costly.at(g); };
  const Bytes size = some_size(run.chance);
  const auto place = run.gaps.find_cheapest(size, costly.size(), costs);
  const Granules least = run.model.least_cost(size, costly);
  CHECK(place.has_value() == (least != ~Granules{0}));
  if (place) {
    CHECK(place->new_granules == least && Model::cost(place->offset, place->offset + size, costly) == least);
    const auto in = --run.model.all().upper_bound(place->offset);
    CHECK(place->offset % kAlignment == 0 && place->offset + size <= in->second);
  }
  const Granules budget = run.chance() % 6;
  CHECK(run.gaps.largest(budget, costly.size(), costs) == run.model.largest(budget, costly));
}

TEST(gaps_finds_the_cheapest_place_and_the_largest_request_within_a_budget) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    Run run(seed);
    for (int step = 0; step < 150; ++step) {
      if (run.chance() % 16 < 9 || run.blocks.empty()) {
        run.take();
      } else {
        run.add();
      }
      if (step % 3 == 0) check_cheapest(run);
    }
  }
}

TEST(gaps_that_meet_join_their_marks) {
  Gaps gaps(kGranule, [](Mark mark) { return mark.number == 9; });
  gaps.add({0, 512}, Marks({0, 1}));
  gaps.add({1024, 1536}, Marks({1, 9}));  // reached
  gaps.add({512, 1024}, Marks({2, 3}));
  CHECK(gaps.count() == 1);
  std::map<StreamIndex, std::uint64_t> marks;
  for (const Mark mark : gaps.marks_at(600)) marks[mark.stream] = mark.number;
  marks.erase(1);
  CHECK(marks == (std::map<StreamIndex, std::uint64_t>{{0, 1}, {2, 3}}));
  CHECK(!gaps.take(0, 512) && gaps.take(512, 1024));
}

}  // namespace
}  // namespace arena
