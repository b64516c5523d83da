// How memory is laid out where nothing may be moved, so that more is left for later requests: small handles, and a choice
// of places.
#include <tuple>

#include "core/backing/stitched.hpp"

namespace arena {
namespace {

// In thousandths of the cap: from where on no more is taken than a request needs, and from where on aliases save memory.
constexpr Granules kTight = 935, kNearlyFull = 970;
constexpr Granules kMostLooked = 1024;  // granules that are looked at for one request
// A new handle takes at most this part of what is left. What a handle pins is of use at its own place alone; but each
// handle has its price, so while more than a seventh of the limit is left, they have at least a third of `growth`.
constexpr Granules kShareUnmoved = 29, kMuch = 7, kNotSmall = 3, kLarge = 2;  // and never more than half of it

}  // namespace

Granules Stitched::new_handle_size(Granules limit) const {
  if (moves_) return handle_size(limit);
  const Granules left = left_under(limit);
  const Granules least = kMuch * left > limit ? std::max<Granules>(1, growth_ / kNotSmall) : 1;
  const Granules most = std::max(least, growth_ / kLarge);
  return std::min(left, std::clamp<Granules>(left / kShareUnmoved, least, most));
}

// A handle that is idle can be used anywhere, until a block lies on it. So a place on handles that are in use is better
// than one that touches fewer new granules, and of places that are alike the one in the smallest gap is.
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

// Idle handles that a block would pin for a part of them make room for small ones. Aliases may add even less to what is
// in use.
bool Stitched::find_better(Demand& demand, Granules cap) const {
  const Span span = span_of(demand.place->offset, demand.size);
  const Granules needed = needed_by(span);
  const bool may_alias = kThousand * (in_use() + span.count()) > kNearlyFull * cap && needed > 0;
  if (may_alias) demand.stitch = plan(span_of(0, demand.size).count(), needed - 1, Aim::kToSave);
  demand.splits = !demand.stitch && needed < added_by(span);
  return demand.stitch || demand.splits;
}

// A handle for a granule of the span, and none that is larger than what is needed there: if there is no other, one of those
// makes room for a new one.
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

// Gives idle handles back that lie on the span with a part of them only. False if one of them may still be used.
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
    give_back(index);
  }
  return true;
}

// How many granules come to be in use: of an idle handle, all.
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

// How many would if each had a handle of its own.
Granules Stitched::needed_by(Span span) const {
  Granules needed = 0;
  for (Granules g = span.begin; g < span.end; ++g) needed += !is_fixed(g, Moving::kForbidden);
  return needed;
}

// Of a place in a gap only the first and the last granule can be touched.
Granules Stitched::untouched_in(Span span) const {
  const bool is_first = granules_[span.begin].blocks > 0, is_last = granules_[span.end - 1].blocks > 0;
  return span.count() - is_first - (is_last && span.count() > 1);
}

// Visits the parts of a gap that lie on handles in use. Looks at no more granules than are `left`.
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
