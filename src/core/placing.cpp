// How memory is laid out where nothing may be moved, so that more is left for later requests: small handles, and a choice
// of places.
#include <tuple>

#include "core/stitched.hpp"

namespace arena {
namespace {

constexpr Granules kParts = 20, kScarce = 17;  // memory is scarce when 17/20 of the cap are in use
constexpr Granules kFull = 33;                 // and there is hardly any when all but 1/33 are
constexpr Granules kMostLooked = 1024;         // granules that are looked at for one request
// A new handle takes at most this part of what is left. What a handle pins is of use at its own place alone; but each
// handle has its price, so while more than an eighth of the limit is left, they are not small.
constexpr Granules kShareUnmoved = 30, kMuch = 8, kNotSmall = 4;

}  // namespace

Granules Stitched::new_handle_size(Granules limit) const {
  if (moves_) return handle_size(limit);
  const Granules left = left_under(limit);
  const Granules least = kMuch * left > limit ? std::max<Granules>(1, growth_ / kNotSmall) : 1;
  return std::min(left, std::clamp<Granules>(left / kShareUnmoved, least, growth_));
}

// A handle that is idle can be used anywhere, until a block lies on it. So a place on handles that are in use is better
// than one that touches fewer new granules, and of places that are alike the one in the smallest gap is.
Place Stitched::best_place(Bytes size, const Place& fewest, Granules cap) const {
  if (kParts * (fixed(false) + span_of(0, size).count()) <= kScarce * cap) return fewest;
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

bool Stitched::is_wasteful(Span span, Granules cap) const {
  return kFull * (fixed(false) + span.count()) > (kFull - 1) * cap && added_by(span) > 1;
}

bool Stitched::find_better(Demand& demand) const {
  const Span span = span_of(demand.place->offset, demand.size);
  demand.stitch = plan(span_of(0, demand.size).count(), added_by(span) - 1, Aim::kToSave);
  return demand.stitch.has_value();
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
    if (is_fixed(g, false)) {
      end = std::min(gap.end, (g + 1) * granule_);
    } else {
      if (begin < end) visit(begin, end);
      begin = end = (g + 1) * granule_;
    }
  }
  if (begin < end) visit(begin, end);
}

}  // namespace arena
