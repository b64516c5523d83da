#include "core/stitched.hpp"

#include <algorithm>

namespace arena {
namespace {

constexpr Bytes kAddressesPerByte = 8;  // addresses cost nothing, and room to place blocks saves mapping

Granules granules_of(const Device& device) {
  return round_up(kAddressesPerByte * device.total(), device.granule()) / device.granule();
}

}  // namespace

Stitched::Stitched(const Device& device, Streams& streams, Gaps& gaps, Granules growth)
    : Backing(device, streams, gaps, device.granule(), granules_of(device), growth),
      address_(device.reserve_addresses(size())) {
  gaps_.add({0, size()}, {});
}

Stitched::~Stitched() {
  if (abandoned_) return;
  for (const Handle& handle : handles_) {
    if (handle.count == 0) continue;
    if (handle.mapped) insist([&] { device_.unmap(address_at(handle.begin), handle.count * granule_); });
    insist([&] { device_.release(handle.id); });
  }
  insist([&] { device_.free_addresses(address_, size()); });
}

bool Stitched::could_hold(const Demand& demand, Granules limit) const {
  return demand.place && touched_granules_ + demand.place->new_granules <= limit;
}

// Granules that blocks touch, and those that nothing can set free, are out of reach. (A request that lies on some of the
// latter could be a little larger.)
Bytes Stitched::largest(Granules limit, bool may_reback) const {
  const Granules fixed = touched_granules_ + pinned_granules_ + (may_reback ? 0 : compactable());
  const Bytes obtainable = gaps_.largest(limit > fixed ? limit - fixed : 0);
  return may_reback ? obtainable : std::max(obtainable, largest_free());
}

Granules Stitched::compactable() const {
  const Granules other = spare_granules_ + idle_granules_ + touched_granules_ + pinned_granules_;
  return reserved_ > other ? reserved_ - other : 0;
}

std::optional<Offset> Stitched::back(const Demand& demand, const Limit& limit, Effort effort, Lock&) {
  if (!demand.place) return std::nullopt;
  const Span span = span_of(demand.place->offset, demand.size);
  const Granules most = limit();
  if (effort == Effort::kPoll) poll();
  std::size_t spares = spare_.size();  // not more than there were: one that the driver refuses to open is spare again
  while (!map_all(span, most, demand.may_unmap)) {
    bool freed = false;
    if (!demand.may_unmap) return std::nullopt;
    if (effort == Effort::kRelease) {
      freed = release_spare(spares) || release_idle(span.count(), span) > 0;
    } else if (effort == Effort::kReback) {
      freed = reback(span);
    }
    if (!freed) return std::nullopt;
  }
  return demand.place->offset;
}

// After all that was ever backed there is room, for there are many more addresses than memory.
std::optional<Offset> Stitched::back_anew(const Demand& demand, const Limit& limit, Lock&) {
  const Offset offset = backed_end_ * granule_;
  const Span span = span_of(offset, demand.size);
  const Granules most = limit();
  if (span.end > granules_.size() || span.count() > left_under(most) + spare_granules_) return std::nullopt;
  if (!map_all(span, most, false)) return std::nullopt;
  return offset;
}

// How many granules from here on nothing is mapped at.
Granules Stitched::room_at(Granules granule, Granules most) const {
  Granules count = 0;
  while (count < most && granule + count < granules_.size() && granules_[granule + count].handle == kNone) ++count;
  return count;
}

bool Stitched::map_all(Span span, Granules limit, bool may_harvest) {
  std::vector<Index> fresh;
  bool complete = true;
  try {
    for (Granules g = span.begin; g < span.end && complete; ++g) {
      if (granules_[g].handle != kNone) continue;
      const Index index = take(g, span, limit, may_harvest);
      complete = index != kNone && map(index, g);
      if (complete) fresh.push_back(index);
    }
  } catch (const Error&) {
    retract(fresh);
    throw;
  }
  // Older ones that the driver once refused to open are tried again.
  for (Granules g = span.begin; g < span.end && complete; g = handles_[granules_[g].handle].end()) {
    const Index index = granules_[g].handle;
    const bool is_fresh = std::find(fresh.begin(), fresh.end(), index) != fresh.end();
    if (!handles_[index].accessible && !is_fresh) complete = allow({index});
  }
  return (fresh.empty() || allow(fresh)) && complete;
}

// A handle for a granule of the span, mapped nowhere and not among the spare ones.
Stitched::Index Stitched::take(Granules at, Span span, Granules limit, bool may_harvest) {
  const Granules need = room_at(at, span.end - at), room = room_at(at, std::max(need, growth_));
  Index index = take_spare(need, room);
  if (index == kNone && may_harvest) {
    index = harvest(need, room, span);
    if (index != kNone) unmap(index);
  }
  if (index == kNone && reserved_ < limit) index = create(std::min(room, handle_size(limit)));
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
    return !handle.pending && !handle.span().overlaps(keep);
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
  std::optional<cu::MemHandle> id = device_.create(count * granule_);
  while (!id && count > 1) id = device_.create((count /= 2) * granule_);  // others use the device too
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

void Stitched::unmap(Index index) {
  device_.unmap(address_at(handles_[index].begin), handles_[index].count * granule_);
  detach(index);
}

// One call for the whole run: all between the first and the last new handle is mapped.
bool Stitched::allow(const std::vector<Index>& fresh) {
  const Granules begin = handles_[fresh.front()].begin, end = handles_[fresh.back()].end();
  bool allowed = false;
  try {
    allowed = device_.set_access(address_at(begin), (end - begin) * granule_);
  } catch (const Error&) {
    retract(fresh);
    throw;
  }
  for (const Index index : fresh) handles_[index].accessible = allowed;
  if (!allowed) retract(fresh);
  refused_ |= !allowed;
  return allowed;
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
  std::vector<Index> going;
  Granules found = 0;
  const BySize& idle = idle_handles();
  const auto choose = [&](const auto& may_go) {
    for (auto it = idle.rbegin(); it != idle.rend() && found < wanted; ++it) {
      const Handle& handle = handles_[it->second.second];
      if (handle.pending || !may_go(handle.span())) continue;
      going.push_back(it->second.second);
      found += handle.count;
    }
  };
  choose([&](Span span) { return !span.overlaps(keep); });
  if (found == 0) {
    choose([&](Span span) { return span.overlaps(keep) && (span.begin < keep.begin || span.end > keep.end); });
  }
  for (const Index index : going) {
    unmap(index);
    give_back(index);
  }
  return found;
}

bool Stitched::reserve(Granules granules, const Limit& limit, Lock&) {
  while (granules > 0) {
    const Granules left = left_under(limit());
    if (left == 0) return false;
    const Index index = create(std::min({granules, growth_, left}));
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
