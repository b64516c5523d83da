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
      each_mapping(handle,
                   [&](Mapping mapping) { insist([&] { device_.unmap(mapping.address, handle.count * granule_); }); });
    }
    insist([&] { device_.release(handle.id); });
  }
  for (const Range& range : ranges_) {
    insist([&] { device_.free_addresses(range.address, range.count * granule_); });
  }
}

void Stitched::make_room(Granules most) {
  const auto is_enough = [&](const Range& range) { return range.count >= most; };
  if (!std::any_of(ranges_.begin(), ranges_.end(), is_enough)) add_range(reserve_addresses(device_, most));
}

// Ranges that the driver gives lie anywhere: no block lies in two of them.
void Stitched::add_range(AddressRange range) {
  if (!granules_.empty()) {
    granules_.emplace_back().handle = kWall;
    ++walls_;
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

Granules Stitched::stuck(Moving moving) const {
  return pinned_granules_ + (moving == Moving::kAllowed ? 0 : compactable());
}

// Where no place is within reach, one may be put together. If data may be moved that is better, but beyond a lowered limit it
// is of no use.
bool Stitched::can_hold(Demand& demand, Granules limit, Moving moving) const {
  if (!demand.place) return false;
  demand.stitch.reset();
  if (has_place(demand, limit, moving)) return true;
  if (moving == Moving::kAllowed || demand.may_alias) {
    const Granules budget = limit - std::min(limit, fixed(Moving::kForbidden));
    demand.stitch = plan(span_of(0, demand.size).count(), budget, Aim::kToPass);
    if (demand.stitch) return true;
  }
  if (reserved_ <= limit) return false;
  const std::optional<Place> mapped = WithoutUnusedAliases(*this).find_mapped(demand.size);
  if (mapped) demand.place = mapped;
  return mapped.has_value();
}

// The place with the fewest untouched granules is as good as any while nothing is stuck, and usually otherwise. Only where
// it is not, all others are looked at.
bool Stitched::has_place(Demand& demand, Granules limit, Moving moving) const {
  const WithoutUnusedAliases reduced(*this);
  const Granules taken = fixed(moving);
  if (taken + reduced.cost(span_of(demand.place->offset, demand.size), moving) <= limit) return true;
  const std::optional<Place> best = reduced.gaps().find(demand.size);
  if (!best || touched_granules_ + best->new_granules > limit) return false;  // no place needs less
  demand.place = best;
  if (stuck(moving) == 0) return true;
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

// Between what it would be if nothing that is stuck could be used, and if all of it could.
Bytes Stitched::find_largest(Granules limit, Moving moving) const {
  const Granules taken = fixed(moving), budget = limit - std::min(limit, taken);
  const bool is_stitched = moving == Moving::kForbidden || taken > limit;
  const Bytes stitched =
      is_stitched ? most_by_stitching(limit - std::min(limit, fixed(Moving::kForbidden))) * granule_ : 0;
  const WithoutUnusedAliases reduced(*this);
  Bytes there = std::max(stitched, inactive_granules_ > 0 ? largest_free() : 0);
  if (reserved_ > limit) there = std::max(there, reduced.largest_mapped());
  if (taken > limit) return there;
  const Bytes least = reduced.gaps().largest(budget);
  if (least == reduced.gaps().largest(budget + stuck(moving))) return std::max(there, least);
  return std::max(there, reduced.gaps().largest(budget, backed_end_, reduced.costs(moving)));
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
  // Beyond a lowered limit, what is given back does not come again.
  if (demand.splits && (reserved_ > most || !split_idle(span, demand.may_unmap))) return std::nullopt;
  std::size_t spares = spare_.size();  // not more than there were: one that the driver refuses to open is spare again
  while (!map_all(span, most, demand.may_unmap)) {
    if (!free_some(span, step, spares, demand.may_unmap)) return std::nullopt;
  }
  return demand.place->offset;
}

// To ask whether idle handles can be used is far cheaper than to create others, if there are not very many.
bool Stitched::may_save_handles(const Demand& demand) const {
  constexpr std::size_t kVeryMany = 64;
  if (pending_granules_ == 0 || idle_.size() + unsorted_.size() > kVeryMany) return false;
  if (demand.stitch) return demand.stitch->middle > 0;
  Granules bare = 0;
  const Span span = span_of(demand.place->offset, demand.size);
  for (Granules g = span.begin; g < span.end; ++g) bare += granules_[g].handle == kNone;
  return 2 * pending_granules_ > bare;
}

bool Stitched::free_some(Span keep, Step step, std::size_t& spares, const std::function<bool()>& may_unmap) {
  if (step < Step::kRelease || !may_unmap()) return false;
  if (release_spare(spares)) return true;
  return step == Step::kRelease ? release_idle(keep.count(), keep) > 0 : reback(keep);
}

// After all that was ever backed there is room, for there are many more addresses than memory. If that has been used up,
// where nothing is mapped any more. Where nothing may be unmapped, a device that has too little is not asked for a part.
std::optional<Offset> Stitched::back_anew(const Demand& demand, const Limit& limit, Lock&) {
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

// How many granules from here on nothing is mapped at.
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

// Some platforms say that memory can be created for RDMA, and refuse to open it then: WSL2 does. Nothing is mapped yet; what
// is spare is created again.
bool Stitched::give_up_rdma() {
  if (is_proven_ || !kind_.rdma) return false;
  std::vector<Granules> counts;
  while (!spare_.empty()) {
    counts.push_back(spare_.begin()->first);
    give_back(take_spare(counts.back(), 0));
  }
  kind_.rdma = false;  // only now: what the driver did not take back is still for RDMA
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
  // Older ones that the driver once refused to open are tried again.
  for (Granules g = span.begin; g < span.end && complete; g = end_of_mapping(g)) {
    const Index index = granules_[g].handle;
    const bool is_fresh = std::find(fresh.begin(), fresh.end(), index) != fresh.end();
    if (!handles_[index].accessible && !is_fresh) complete = allow({index});
  }
  return (fresh.empty() || allow(fresh)) && complete;
}

// Maps a handle wherever there is none. False if there are not enough; what was mapped is among the fresh ones.
bool Stitched::fill(Span span, Granules limit, const std::function<bool()>& may_unmap, std::vector<Index>& fresh) {
  try {
    for (Granules g = span.begin; g < span.end; ++g) {
      if (granules_[g].handle != kNone) continue;
      const Index index = take(g, span, limit, may_unmap);
      if (index == kNone || !map(index, g)) return false;
      fresh.push_back(index);
    }
  } catch (const Error&) {
    retract(fresh);
    throw;
  }
  return true;
}

// A handle for a granule of the span, mapped nowhere and not among the spare ones.
Stitched::Index Stitched::take(Granules at, Span span, Granules limit, const std::function<bool()>& may_unmap) {
  const Granules need = room_at(at, span.end - at), room = room_at(at, std::max(need, growth_));
  Index index = kNone;
  if (!moves_ && is_tight(span.count(), limit)) index = take_exactly(need, span, limit, may_unmap);
  if (index == kNone) index = reuse(need, room, span, may_unmap);
  if (index == kNone && reserved_ < limit) index = create(std::min(room, new_handle_size(limit)));
  return index;
}

// A handle that is there already, spare or idle.
Stitched::Index Stitched::reuse(Granules need, Granules room, Span keep, const std::function<bool()>& may_unmap) {
  Index index = take_spare(need, room);
  if (index != kNone) return index;
  index = harvest(need, room, keep);
  if (index == kNone || !may_unmap()) return kNone;
  unmap(index);
  return index;
}

// The largest spare handle that is needed whole; otherwise the smallest that there is room for.
Stitched::Index Stitched::take_spare(Granules need, Granules room) {
  auto it = spare_.upper_bound({need, {~Granules{0}, kNone}});
  if (it != spare_.begin()) {
    --it;
  } else if (it == spare_.end() || it->first > room) {
    return kNone;
  }
  const Index index = it->second.second;
  spare_.erase(it);
  return index;
}

// An idle handle, chosen like a spare one, and among equals the one at the highest place: low places fill up first.
Stitched::Index Stitched::harvest(Granules need, Granules room, Span keep) {
  const auto usable = [&](const auto& entry) {
    const Handle& handle = handles_[entry.second.second];
    return !handle.pending && !overlaps(handle, keep);
  };
  const BySize& idle = idle_handles();
  const auto middle = idle.upper_bound({need, {~Granules{0}, kNone}});
  for (auto it = middle; it != idle.begin();) {
    if (usable(*--it)) return it->second.second;
  }
  Index found = kNone;
  for (auto it = middle; it != idle.end() && it->first <= room; ++it) {
    if (found != kNone && it->first != handles_[found].count) break;
    if (usable(*it)) found = it->second.second;
  }
  return found;
}

Stitched::Index Stitched::create(Granules count) {
  std::optional<cu::MemHandle> id = device_.create(count * granule_, kind_.rdma);
  while (!id && count > 1) id = device_.create((count /= 2) * granule_, kind_.rdma);  // others use the device too
  refused_ |= !id;
  if (!id) return kNone;
  const Index index = add_handle(count);
  handles_[index].id = *id;
  note_peak();
  return index;
}

// A handle that is not among the spare ones, where it goes if the driver does not map it. False if it has no room.
bool Stitched::map(Index index, Granules at) {
  try {
    if (device_.map(address_at(at), handles_[index].count * granule_, handles_[index].id)) {
      attach(index, at, address_at(at));
      return true;
    }
  } catch (const Error&) {
    put_spare(index);
    throw;
  }
  put_spare(index);
  refused_ = true;
  return false;
}

// Everywhere: where blocks touch it, they get other memory. Aliases go first, so that what fails half-way can be undone.
void Stitched::unmap(Index index) {
  const Bytes size = handles_[index].count * granule_;
  std::size_t done = 0;
  const std::vector<Mapping> aliases = handles_[index].aliases;
  try {
    for (; done < aliases.size(); ++done) device_.unmap(aliases[done].address, size);
    device_.unmap(handles_[index].address, size);
  } catch (const Error&) {
    for (std::size_t i = 0; i < done; ++i) map_again(index, aliases[i]);
    throw;
  }
  detach(index);
}

// One call for the whole run: all between the first and the last new handle is mapped.
bool Stitched::allow(const std::vector<Index>& fresh) {
  const Granules begin = handles_[fresh.front()].begin, end = handles_[fresh.back()].end();
  bool allowed = false;
  try {
    allowed = open(address_at(begin), (end - begin) * granule_);
  } catch (const Error&) {
    retract(fresh);
    throw;
  }
  for (const Index index : fresh) handles_[index].accessible = allowed;
  if (!allowed) retract(fresh);
  refused_ |= !allowed;
  return allowed;
}

bool Stitched::open(std::uint64_t address, Bytes size) {
  try {
    const bool is_open = device_.set_access(address, size, kind_.peers);
    is_proven_ |= is_open;
    return is_open;
  } catch (const DriverError&) {
    if (is_proven_ || kind_.peers.empty() || kind_.are_peers_chosen) throw;
    return open_for_some(address, size);
  }
}

// A device may be refused although it can access others: because another process has it to itself, for example.
bool Stitched::open_for_some(std::uint64_t address, Bytes size) {
  if (!device_.set_access(address, size, {})) return false;
  std::vector<int> allowed;
  for (const int peer : kind_.peers) {
    quietly([&] {
      if (device_.set_access(address, size, {peer})) allowed.push_back(peer);
    });
  }
  kind_.peers = std::move(allowed);
  is_proven_ = true;
  return true;
}

// What could not be made accessible is not left mapped, unless the driver refuses that as well; it is not used then.
void Stitched::retract(const std::vector<Index>& fresh) {
  for (const Index index : fresh) {
    if (handles_[index].touched > 0) continue;
    try {
      unmap(index);
      put_spare(index);
    } catch (const Error&) {
    }
  }
}

void Stitched::put_spare(Index index) { spare_.insert({handles_[index].count, {0, index}}); }

// A handle that is mapped nowhere and not among the spare ones, where it goes if the driver does not take it.
void Stitched::give_back(Index index) {
  try {
    device_.release(handles_[index].id);
  } catch (const Error&) {
    put_spare(index);
    throw;
  }
  returned_ += handles_[index].count;
  remove_handle(index);
}

// The smallest: where that was not taken for a place, all are too large for it.
bool Stitched::release_spare(std::size_t& most) {
  if (spare_.empty() || most == 0) return false;
  --most;
  give_back(take_spare(spare_.begin()->first, 0));
  return true;
}

// Those that lie on the span in part only come last: what is outside is of no use there, and smaller ones would be.
Granules Stitched::release_idle(Granules wanted, Span keep) {
  if (const Granules released = release_idle_outside(wanted, keep); released > 0) return released;
  return release_idle_if(wanted, [&](const Handle& handle) {
    const Span span = handle.span();
    return overlaps(handle, keep) && (span.begin < keep.begin || span.end > keep.end);
  });
}

Granules Stitched::release_idle_outside(Granules wanted, Span keep) {
  return release_idle_if(wanted, [&](const Handle& handle) { return !overlaps(handle, keep); });
}

// The largest first.
template <typename MayGo>
Granules Stitched::release_idle_if(Granules wanted, const MayGo& may_go) {
  std::vector<Index> going;
  Granules found = 0;
  const BySize& idle = idle_handles();
  for (auto it = idle.rbegin(); it != idle.rend() && found < wanted; ++it) {
    const Handle& handle = handles_[it->second.second];
    if (handle.pending || !may_go(handle)) continue;
    going.push_back(it->second.second);
    found += handle.count;
  }
  for (const Index index : going) {
    unmap(index);
    give_back(index);
  }
  return found;
}

bool Stitched::overlaps(const Handle& handle, Span span) const {
  bool found = false;
  each_mapping(handle,
               [&](Mapping mapping) { found |= Span{mapping.begin, mapping.begin + handle.count}.overlaps(span); });
  return found;
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
    give_back(take_spare(spare_.begin()->first, 0));
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
    give_back(index);
  }
}

}  // namespace arena
