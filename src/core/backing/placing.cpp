// Placement where nothing may be moved: smaller handles and more careful places, to leave more for later requests.
#include <tuple>

#include "core/backing/stitched.hpp"

namespace arena {
namespace {

// In thousandths of the cap: above kTight a request takes no more than it needs; above kNearlyFull aliases save memory.
constexpr Granules kTight = 935, kNearlyFull = 970;
constexpr Granules kMostLooked = 1024;  // granules examined per request
// A new handle takes at most 1/29 of what is left, because its unused part can only be used at its own place. But every
// handle costs driver calls, so it has at least a third of `growth` while more than 1/7 of the limit is left, and at
// most half of `growth`.
constexpr Granules kShareUnmoved = 29, kPlentyShare = 7, kMinGrowthShare = 3, kMaxGrowthShare = 2;

}  // namespace

Granules Stitched::new_handle_size(Granules limit) const {
  if (moves_) return handle_size(limit);
  const Granules left = left_under(limit);
  const Granules least = kPlentyShare * left > limit ? std::max<Granules>(1, growth_ / kMinGrowthShare) : 1;
  const Granules most = std::max(least, growth_ / kMaxGrowthShare);
  return std::min(left, std::clamp<Granules>(left / kShareUnmoved, least, most));
}

// An idle handle can be used anywhere until a block is placed on it. So a place on handles in use is better than one
// that touches fewer new granules. Among equals, the place in the smallest gap is best.
Place Stitched::best_place(Bytes size, const Place& fewest) const {
  std::tuple<bool, Granules, Granules> least{true, ~Granules{0}, 0};
  Place best = fewest;
  Granules left = kMostLooked;
  gaps_.each_that_holds(size, [&](const Gap& gap, std::uint32_t index) {
    const auto offer = [&](Offset offset, bool adds) {
      const Granules untouched = untouched_in(span_of(offset, size));
      const std::tuple cost{adds, untouched, unit_.count(gap.size())};
      if (cost >= least) return;
      least = cost;
      best = {offset, untouched, index};
    };
    offer(gap.begin, true);
    offer(gap.end - size, true);
    each_run_in_use(gap, left, [&](Offset begin, Offset end) {
      if (end - begin < size) return;
      offer(begin, false);
      if (end == gap.end) offer(end - size, false);
    });
    return left == 0;
  });
  return best;
}

bool Stitched::is_wasteful(Span span, Granules cap) const { return is_tight(span.count(), cap) && added_by(span) > 1; }

bool Stitched::is_tight(Granules more, Granules limit) const { return kThousand * (in_use() + more) > kTight * limit; }

// Replaces idle handles by smaller ones where a block needs only part of them. Aliases may add even less to the memory
// in use.
bool Stitched::find_better(Demand& demand, Granules cap) const {
  const Span span = span_of(demand.place->offset, demand.size);
  const Granules needed = needed_by(span);
  const bool may_alias = kThousand * (in_use() + span.count()) > kNearlyFull * cap && needed > 0;
  if (may_alias) demand.stitch = plan(span_of(0, demand.size).count(), needed - 1, Goal::kSaveMemory);
  demand.splits = !demand.stitch && needed < added_by(span);
  return demand.stitch || demand.splits;
}

// A handle no larger than `need`. If all are larger, releases one of them to create a smaller one.
Stitched::Index Stitched::take_exactly(Granules need, Span span, Granules limit,
                                       const std::function<bool()>& may_unmap) {
  const Index index = reuse(need, need, span, may_unmap);
  if (index != kNone) return index;
  if (reserved_ == limit && may_unmap()) {
    std::size_t spares = spare_.size();
    if (!release_spare(spares)) release_idle_outside(1, span);
  }
  return reserved_ < limit ? create(std::min(need, new_handle_size(limit))) : kNone;
}

// Releases idle handles that the span overlaps only in part. False if one of them may still be in use.
bool Stitched::split_idle(Span span, const std::function<bool()>& may_unmap) {
  poll();
  std::vector<Index> going;
  for (Granules g = span.begin; g < span.end;) {
    const Index index = granules_[g].handle;
    if (index == kNone) {
      ++g;
      continue;
    }
    g = end_of_mapping(g);
    const Handle& handle = handles_[index];
    const bool is_needed_whole = span.begin <= handle.begin && handle.end() <= span.end;
    if (!handle.idle || is_needed_whole) continue;
    if (handle.pending || !handle.aliases.empty()) return false;
    going.push_back(index);
  }
  if (!going.empty() && !may_unmap()) return false;
  for (const Index index : going) {
    unmap(index);
    release_handle(index);
  }
  return true;
}

// How many more granules would be in use; an idle handle counts whole.
Granules Stitched::added_by(Span span) const {
  Granules added = 0;
  for (Granules g = span.begin; g < span.end;) {
    const Index index = granules_[g].handle;
    if (index == kNone) {
      ++added, ++g;
      continue;
    }
    if (handles_[index].idle) added += handles_[index].count;
    g = end_of_mapping(g);
  }
  return added;
}

// The same if each granule had a handle of its own.
Granules Stitched::needed_by(Span span) const {
  Granules needed = 0;
  for (Granules g = span.begin; g < span.end; ++g) needed += !is_fixed(g, Moving::kForbidden);
  return needed;
}

// In a gap, only the first and the last granule can be touched.
Granules Stitched::untouched_in(Span span) const {
  const bool is_first = granules_[span.begin].blocks > 0, is_last = granules_[span.end - 1].blocks > 0;
  return span.count() - is_first - (is_last && span.count() > 1);
}

// Visits the parts of a gap that lie on handles in use. Looks at up to `left` granules.
template <typename Visit>
void Stitched::each_run_in_use(const Gap& gap, Granules& left, Visit visit) const {
  Offset begin = gap.begin, end = gap.begin;
  const Granules last = std::min(backed_end_, unit_.count(unit_.up(gap.end)));
  for (Granules g = unit_.count(gap.begin); g < last && left > 0; ++g, --left) {
    if (is_fixed(g, Moving::kForbidden)) {
      end = std::min(gap.end, (g + 1) * granule_);
    } else {
      if (begin < end) visit(begin, end);
      begin = end = (g + 1) * granule_;
    }
  }
  if (begin < end) visit(begin, end);
}

}  // namespace arena
