#include "core/backing/stitched.hpp"

#include <algorithm>

namespace arena {
namespace {

const std::function<bool()> kNeverUnmap = [] { return false; };

}  // namespace

Stitched::Stitched(const Device& device, Streams& streams, Gaps& gaps, Granules growth, const BackingPlan& plan,
                   const std::atomic<bool>& moves)
    : Backing(device, streams, gaps, device.granule(), growth), kind_(plan.kind), moves_(moves) {
  add_range(plan.range);
}

Stitched::~Stitched() {
  if (abandoned_) return;
  for (const Handle& handle : handles_) {
    if (handle.count == 0) continue;
    if (handle.mapped) {
      each_mapping(handle, [&](Mapping mapping) {
        try_twice([&] { device_.unmap(mapping.address, handle.count * granule_); });
      });
    }
    try_twice([&] { device_.release(handle.id); });
  }
  for (const Range& range : ranges_) {
    try_twice([&] { device_.free_addresses(range.address, range.count * granule_); });
  }
}

void Stitched::extend_addresses(Granules most) {
  const auto is_enough = [&](const Range& range) { return range.count >= most; };
  if (!std::any_of(ranges_.begin(), ranges_.end(), is_enough)) add_range(reserve_addresses(device_, most));
}

// Ranges are not adjacent in memory, so a separator keeps blocks from spanning two of them.
void Stitched::add_range(AddressRange range) {
  if (!granules_.empty()) {
    granules_.emplace_back().handle = kSeparator;
    ++separators_;
  }
  const Granules begin = granules_.size();
  granules_.resize(begin + range.count);
  ranges_.push_back({begin, range.count, range.address});
  gaps_.add({begin * granule_, (begin + range.count) * granule_}, {});
  ++version_;
}

std::uint64_t Stitched::address_at(Granules granule) const {
  const auto holds_it = [&](const Range& range) { return granule - range.begin < range.count; };
  const Range& range = *std::find_if(ranges_.begin(), ranges_.end(), holds_it);
  return range.address + (granule - range.begin) * granule_;
}

bool Stitched::holds(std::uint64_t address) const { return range_of(address) != 0; }

std::uint64_t Stitched::range_of(std::uint64_t address) const {
  const auto holds_it = [&](const Range& range) { return address - range.address < range.count * granule_; };
  const auto it = std::find_if(ranges_.begin(), ranges_.end(), holds_it);
  return it == ranges_.end() ? 0 : it->address;
}

Granules Stitched::fixed(Moving moving) const {
  return moving == Moving::kAllowed ? touched_granules_ + pinned_granules_ : in_use();
}

bool Stitched::is_fixed(Granules granule, Moving moving) const {
  const Index index = granules_[granule].handle;
  if (index == kNone) return false;
  const Handle& handle = handles_[index];
  return moving == Moving::kAllowed ? granules_[granule].blocks > 0 || handle.pins > 0 : !handle.idle;
}

Granules Stitched::fixed_untouched(Moving moving) const {
  return pinned_granules_ + (moving == Moving::kAllowed ? 0 : compactable());
}

// If no place works, one may be stitched together. Moving data is better if it is allowed, but does not help beyond a
// lowered limit.
bool Stitched::can_hold(Demand& demand, Granules limit, Moving moving) const {
  if (!demand.place) return false;
  demand.stitch.reset();
  if (has_place(demand, limit, moving)) return true;
  if (moving == Moving::kAllowed || demand.may_alias) {
    const Granules budget = limit - std::min(limit, fixed(Moving::kForbidden));
    demand.stitch = plan(span_of(0, demand.size).count(), budget, Goal::kFit);
    if (demand.stitch) return true;
  }
  if (reserved_ <= limit) return false;
  const std::optional<Place> mapped = WithoutUnusedAliases(*this).find_mapped(demand.size);
  if (mapped) demand.place = mapped;
  return mapped.has_value();
}

// While no untouched granule is fixed, the place with the fewest untouched granules is as good as any. It usually is
// otherwise, too; only if it is not, all other places are considered.
bool Stitched::has_place(Demand& demand, Granules limit, Moving moving) const {
  const WithoutUnusedAliases reduced(*this);
  const Granules taken = fixed(moving);
  if (taken + reduced.cost(span_of(demand.place->offset, demand.size), moving) <= limit) return true;
  const std::optional<Place> best = reduced.gaps().find(demand.size);
  if (!best || touched_granules_ + best->new_granules > limit) return false;  // no place needs less
  demand.place = best;
  if (fixed_untouched(moving) == 0) return true;
  if (taken + reduced.cost(span_of(best->offset, demand.size), moving) <= limit) return true;
  const auto cheapest = reduced.gaps().find_cheapest(demand.size, backed_end_, reduced.costs(moving));
  if (!cheapest || taken + cheapest->new_granules > limit) return false;
  demand.place = cheapest;
  return true;
}

Bytes Stitched::largest(Granules limit, Moving moving) const {
  Largest& known = largest_[moving == Moving::kAllowed];
  if (known.version != version_ || known.limit != limit) known = {{version_, find_largest(limit, moving)}, limit};
  return known.size;
}

// The answer lies between those with none and with all of the fixed untouched granules usable. If these are equal, the
// exact search is not needed.
Bytes Stitched::find_largest(Granules limit, Moving moving) const {
  const Granules taken = fixed(moving), budget = limit - std::min(limit, taken);
  // As in can_hold(): beyond a lowered limit, a stitched place may be larger than what moving data frees.
  const bool is_stitched = moving == Moving::kForbidden || reserved_ > limit;
  const Bytes stitched =
      is_stitched ? largest_by_stitching(limit - std::min(limit, fixed(Moving::kForbidden))) * granule_ : 0;
  const WithoutUnusedAliases reduced(*this);
  Bytes available = std::max(stitched, inactive_granules_ > 0 ? largest_free() : 0);
  if (reserved_ > limit) available = std::max(available, reduced.largest_mapped());
  if (taken > limit) return available;
  const Bytes least = reduced.gaps().largest(budget);
  if (least == reduced.gaps().largest(budget + fixed_untouched(moving))) return std::max(available, least);
  return std::max(available, reduced.gaps().largest(budget, backed_end_, reduced.costs(moving)));
}

Granules Stitched::compactable() const {
  const Granules other = spare_granules_ + idle_granules_ + touched_granules_ + pinned_granules_;
  return reserved_ > other ? reserved_ - other : 0;
}

std::optional<Offset> Stitched::back(const Demand& demand, const Limit& limit, Step step, Lock&) {
  if (!demand.place) return std::nullopt;
  if (step == Step::kPoll || may_save_handles(demand)) poll();
  drop_unused_aliases(demand.may_unmap);
  if (demand.stitch) return stitch(demand, limit(), step);
  if (!gaps_.holds(demand.place->offset, demand.size)) return std::nullopt;
  const Span span = span_of(demand.place->offset, demand.size);
  const Granules most = limit();
  // Beyond a lowered limit, released memory cannot be created again.
  if (demand.splits && (reserved_ > most || !split_idle(span, demand.may_unmap))) return std::nullopt;
  std::size_t spares = spare_.size();  // bounds the loop: a handle that the driver refuses to open becomes spare again
  while (!map_all(span, most, demand.may_unmap)) {
    if (!free_some(span, step, spares, demand.may_unmap)) return std::nullopt;
  }
  return demand.place->offset;
}

// Polling for idle handles is far cheaper than creating others, if there are not too many.
bool Stitched::may_save_handles(const Demand& demand) const {
  constexpr std::size_t kTooMany = 64;
  if (pending_granules_ == 0 || idle_.size() + unsorted_.size() > kTooMany) return false;
  if (demand.stitch) return demand.stitch->middle > 0;
  Granules unmapped = 0;
  const Span span = span_of(demand.place->offset, demand.size);
  for (Granules g = span.begin; g < span.end; ++g) unmapped += granules_[g].handle == kNone;
  return 2 * pending_granules_ > unmapped;
}

bool Stitched::free_some(Span keep, Step step, std::size_t& spares, const std::function<bool()>& may_unmap) {
  if (step < Step::kRelease || !may_unmap()) return false;
  if (release_spare(spares)) return true;
  return step == Step::kRelease ? release_idle(keep.count(), keep) > 0 : reback(keep);
}

// Uses addresses that were never backed, because there are many more addresses than memory; if they have run out,
// unmapped ones. Where nothing may be unmapped, a partial allocation could not be undone, so `device_free` is checked
// first.
std::optional<Offset> Stitched::back_with_new(const Demand& demand, const Limit& limit, Lock&) {
  Offset offset = backed_end_ * granule_;
  const Granules most = limit(), count = span_of(0, demand.size).count();
  Granules left = left_under(most);
  if (!demand.may_unmap()) {
    refused_ |= demand.device_free / granule_ < left;
    left = std::min(left, demand.device_free / granule_);
  }
  if (count > left + spare_granules_) return std::nullopt;
  if (room_at(backed_end_, count) < count) {
    const auto is_mapped = [this](Granules granule) { return granules_[granule].handle != kNone; };
    const std::optional<Place> place = gaps_.find_cheapest(demand.size, granules_.size(), is_mapped);
    if (!place || place->new_granules > 0) return std::nullopt;
    offset = place->offset;
  }
  if (!map_all(span_of(offset, demand.size), most, kNeverUnmap)) return std::nullopt;
  return offset;
}

// How many unmapped granules there are from here on.
Granules Stitched::room_at(Granules granule, Granules most) const {
  Granules count = 0;
  while (count < most && granule + count < granules_.size() && granules_[granule + count].handle == kNone) ++count;
  return count;
}

template <typename Function>
auto Stitched::with_or_without_rdma(const Function& function) {
  try {
    return function();
  } catch (const DriverError&) {
    if (!give_up_rdma()) throw;
    return function();
  }
}

// Some platforms claim that memory can be created for RDMA, but then refuse access to it: WSL2 does. Nothing is mapped
// yet; spare handles are created again.
bool Stitched::give_up_rdma() {
  if (is_proven_ || !kind_.rdma) return false;
  std::vector<Granules> counts;
  while (!spare_.empty()) {
    counts.push_back(spare_.begin()->first);
    release_handle(take_spare(counts.back(), 0));
  }
  kind_.rdma = false;  // only now: if a release fails, the remaining handles are still for RDMA
  for (const Granules count : counts) {
    const Index index = create(count);
    if (index == kNone) break;
    put_spare(index);
  }
  return true;
}

bool Stitched::map_all(Span span, Granules limit, const std::function<bool()>& may_unmap) {
  return with_or_without_rdma([&] { return try_to_map(span, limit, may_unmap); });
}

bool Stitched::try_to_map(Span span, Granules limit, const std::function<bool()>& may_unmap) {
  std::vector<Index> fresh;
  bool complete = fill(span, limit, may_unmap, fresh);
  // Retry older handles that the driver once refused to open.
  for (Granules g = span.begin; g < span.end && complete; g = end_of_mapping(g)) {
    const Index index = granules_[g].handle;
    const bool is_fresh = std::find(fresh.begin(), fresh.end(), index) != fresh.end();
    if (!handles_[index].accessible && !is_fresh) complete = open_handles({index});
  }
  return (fresh.empty() || open_handles(fresh)) && complete;
}

// Maps handles where there are none, and adds them to `fresh`. False if there is not enough memory.
bool Stitched::fill(Span span, Granules limit, const std::function<bool()>& may_unmap, std::vector<Index>& fresh) {
  try {
    for (Granules g = span.begin; g < span.end; ++g) {
      if (granules_[g].handle != kNone) continue;
      const Index index = take(g, span, limit, may_unmap);
      if (index == kNone || !map(index, g)) return false;
      fresh.push_back(index);
    }
  } catch (const Error&) {
    undo_mapping(fresh);
    throw;
  }
  return true;
}

// A handle for a granule of the span, unmapped and taken from the spare list.
Stitched::Index Stitched::take(Granules at, Span span, Granules limit, const std::function<bool()>& may_unmap) {
  const Granules need = room_at(at, span.end - at), room = room_at(at, std::max(need, growth_));
  Index index = kNone;
  if (!moves_ && is_tight(span.count(), limit)) index = take_exactly(need, span, limit, may_unmap);
  if (index == kNone) index = reuse(need, room, span, may_unmap);
  if (index == kNone && reserved_ < limit) index = create(std::min(room, new_handle_size(limit)));
  return index;
}

// An existing handle, spare or idle.
Stitched::Index Stitched::reuse(Granules need, Granules room, Span keep, const std::function<bool()>& may_unmap) {
  Index index = take_spare(need, room);
  if (index != kNone) return index;
  index = harvest(need, room, keep);
  if (index == kNone || !may_unmap()) return kNone;
  unmap(index);
  return index;
}

bool Stitched::reserve(Granules granules, const Limit& limit, Lock&) {
  while (granules > 0) {
    const Granules left = left_under(limit());
    if (left == 0) return false;
    const Index index = with_or_without_rdma([&] { return create(std::min({granules, growth_, left})); });
    if (index == kNone) return false;
    put_spare(index);
    granules -= std::min(granules, handles_[index].count);
  }
  return true;
}

void Stitched::trim(Granules keep, Granules most, Lock&) {
  poll();
  const auto may_go = [&](Granules left, Granules count) { return left > most || left >= keep + count; };
  while (!spare_.empty() && may_go(reserved_, spare_.begin()->first)) {
    release_handle(take_spare(spare_.begin()->first, 0));
  }
  std::vector<Index> going;
  Granules left = reserved_;
  for (const auto& [count, entry] : idle_handles()) {
    if (handles_[entry.second].pending || !may_go(left, count)) continue;
    going.push_back(entry.second);
    left -= count;
  }
  for (const Index index : going) {
    unmap(index);
    release_handle(index);
  }
}

}  // namespace arena
