// Aliases: a handle in use is mapped a second time, so that the free granules at its end or beginning can be used
// elsewhere. That gives scattered memory to one request without moving anything:
//
//   |aaa.....|  |..bb|  |........|        blocks a and b, and an idle handle
//
//   |   RRRRR|RRRRRRRR|RR  |              the request R: an alias of the first handle, the idle one, an alias of the second
//
// A handle can only be mapped whole, so a request has at most two aliases, one at each end. Every granule of a handle
// is used through one address at a time, and its next user waits for the last one at any address. An alias that no
// block touches stays mapped for the next such request, until another request needs the memory.
#include <algorithm>
#include <tuple>

#include "core/backing/stitched.hpp"

namespace arena {

Stitched::WithoutUnusedAliases::WithoutUnusedAliases(const Stitched& backing) : backing_(backing) {
  if (backing.inactive_granules_ == 0) return;
  backing.each_empty_alias([&](Index index, Mapping alias) {
    const Handle& handle = backing.handles_[index];
    if (!changed_gaps_) changed_gaps_ = backing.gaps_;
    for (Granules i = 0; i < handle.count; ++i) {
      const Granules back = (backing.granules_[alias.begin + i].inactive ? alias.begin : handle.begin) + i;
      changed_gaps_->add({back * backing.granule_, (back + 1) * backing.granule_}, {});
    }
    dropped_.push_back({alias.begin, alias.begin + handle.count});
  });
}

bool Stitched::WithoutUnusedAliases::is_dropped(Granules granule) const {
  return std::any_of(dropped_.begin(), dropped_.end(), [&](Span span) { return granule - span.begin < span.count(); });
}

Gaps::Costs Stitched::WithoutUnusedAliases::costs(Moving moving) const {
  return [this, moving](Granules granule) { return !backing_.is_fixed(granule, moving) || is_dropped(granule); };
}

Granules Stitched::WithoutUnusedAliases::cost(Span span, Moving moving) const {
  const Gaps::Costs costs_granule = costs(moving);
  Granules sum = 0;
  for (Granules g = span.begin; g < span.end; ++g) sum += costs_granule(g);
  return sum;
}

Gaps::Costs Stitched::WithoutUnusedAliases::unmapped() const {
  return [this](Granules granule) { return backing_.granules_[granule].handle == kNone || is_dropped(granule); };
}

Bytes Stitched::WithoutUnusedAliases::largest_mapped() const {
  return changed_gaps_ ? changed_gaps_->largest(0, backing_.backed_end_, unmapped()) : backing_.largest_free();
}

std::optional<Place> Stitched::WithoutUnusedAliases::find_mapped(Bytes size) const {
  const std::optional<Place> place = gaps().find_cheapest(size, backing_.backed_end_, unmapped());
  return place && place->new_granules == 0 ? place : std::nullopt;
}

Granules Stitched::active_granule(const Handle& handle, Granules which) const {
  Granules found = handle.begin + which;
  for (const Mapping& alias : handle.aliases) {
    if (!granules_[alias.begin + which].inactive) found = alias.begin + which;
  }
  return found;
}

// Leaves pinned handles out: their mapping must not change.
Stitched::FreeEnds Stitched::free_ends() const {
  FreeEnds found;
  const auto add = [&](std::map<Granules, Index>& to, Granules granules, Index index) {
    if (granules == 0) return;
    const auto [it, is_new] = to.try_emplace(granules, index);
    if (!is_new && handles_[index].count < handles_[it->second].count) it->second = index;
  };
  for (Index index = 0; index < handles_.size(); ++index) {
    const Handle& handle = handles_[index];
    if (!handle.mapped || !handle.accessible || handle.idle || handle.pins > 0 || handle.touched == handle.count)
      continue;
    const auto is_free = [&](Granules which) { return granules_[active_granule(handle, which)].blocks == 0; };
    Granules first = 0, last = 0;
    while (is_free(first)) ++first;  // some granule is touched
    while (is_free(handle.count - 1 - last)) ++last;
    add(found.before, last, index);
    add(found.after, first, index);
  }
  return found;
}

// A stitch that adds at most `most` granules to those in use. Goal::kFit prefers few aliases and few aliased granules,
// which the next request may need. Goal::kSaveMemory prefers to add as little as possible.
std::optional<Stitch> Stitched::plan(Granules wanted, Granules most, Goal goal) const {
  if (!can_alias_) return std::nullopt;
  const FreeEnds all = free_ends();
  using Cost = std::tuple<Granules, Granules, Granules>;
  std::vector<std::pair<Cost, Stitch>> plans;
  const auto consider = [&](Stitch::End before, Stitch::End after) {
    const Granules offered = before.granules + after.granules;
    before.granules = std::min(before.granules, wanted);
    after.granules = std::min(after.granules, wanted - before.granules);
    const Granules aliased = before.granules + after.granules;
    if (wanted - aliased > most) return;
    const Granules aliases = Granules{before.granules > 0} + (after.granules > 0), added = wanted - aliased;
    const Cost to_fit{aliases, most - added, offered - aliased}, to_save{added, offered - aliased, aliases};
    plans.push_back({goal == Goal::kFit ? to_fit : to_save, {before, after, added}});
  };
  for (const auto& [granules, index] : all.before) consider({index, granules}, {});
  for (const auto& [granules, index] : all.after) consider({}, {index, granules});
  for (const auto& [suffix, before] : all.before) {
    for (const auto& [prefix, after] : all.after) {
      if (suffix < wanted) consider({before, suffix}, {after, prefix});
    }
  }
  std::sort(plans.begin(), plans.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [cost, stitch] : plans) {
    if (find_unmapped(count_of(stitch.before.handle) + stitch.middle + count_of(stitch.after.handle))) return stitch;
  }
  return std::nullopt;
}

// The largest request that plan() can serve, in granules.
Granules Stitched::largest_by_stitching(Granules most) const {
  if (!can_alias_ || fixed_untouched(Moving::kForbidden) == 0) return 0;
  FreeEnds all = free_ends();
  if (all.before.empty() && all.after.empty()) return 0;
  all.before.emplace(0, Stitch::kNoHandle);
  all.after.emplace(0, Stitch::kNoHandle);
  const Granules room = longest_unmapped();
  Granules best = 0;
  for (const auto& [suffix, before] : all.before) {
    for (const auto& [prefix, after] : all.after) {
      const Granules ends = count_of(before) + count_of(after);
      if (ends > 0 && ends <= room) best = std::max(best, suffix + prefix + std::min(most, room - ends));
    }
  }
  return best;
}

// The lowest run of `count` granules that nothing is mapped at.
std::optional<Granules> Stitched::find_unmapped(Granules count) const {
  Granules run = 0;
  const Granules end = std::min<Granules>(granules_.size(), backed_end_ + count + separators_);
  for (Granules g = 0; g < end; ++g) {
    run = granules_[g].handle == kNone && granules_[g].blocks == 0 ? run + 1 : 0;
    if (run == count) return g + 1 - count;
  }
  return std::nullopt;
}

// The longest such run. Beyond `backed_end_` there are usually more than enough.
Granules Stitched::longest_unmapped() const {
  Granules longest = 0, run = 0;
  for (Granules g = 0; g < backed_end_; ++g) {
    run = granules_[g].handle == kNone && granules_[g].blocks == 0 ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  for (const Range& range : ranges_) {
    const Granules end = range.begin + range.count, begin = std::max(range.begin, backed_end_);
    if (begin < end) longest = std::max(longest, end - begin + (begin == backed_end_ ? run : 0));
  }
  return longest;
}

// A failed attempt unmaps what it mapped, so nothing is tried where that is not allowed.
std::optional<Offset> Stitched::stitch(const Demand& demand, Granules limit, Step step) {
  if (!demand.may_unmap()) return std::nullopt;
  const Stitch::End before = demand.stitch->before, after = demand.stitch->after;
  const Granules count = demand.stitch->middle;
  const Granules first = count_of(before.handle), last = count_of(after.handle);
  const std::optional<Granules> at = find_unmapped(first + count + last);
  if (!at) return std::nullopt;
  const Span middle{*at + first, *at + first + count};
  std::vector<Index> fresh;
  const auto map_pieces = [&] {
    if (before.granules > 0 && !add_alias(before.handle, *at)) return false;
    if (after.granules > 0 && !add_alias(after.handle, middle.end)) return false;
    std::size_t spares = spare_.size();
    while (!fill(middle, limit, demand.may_unmap, fresh)) {
      if (!free_some(middle, step, spares, demand.may_unmap)) return false;
    }
    const Granules end = fresh.empty() ? middle.end : handles_[fresh.back()].end();
    const bool is_open = open(address_at(*at), (std::max(end, middle.end + last) - *at) * granule_);
    refused_ |= !is_open;
    return is_open;
  };
  const auto undo = [&] {
    undo_mapping(fresh);
    ignore_errors([&] { drop_alias(before.handle, *at); });
    ignore_errors([&] { drop_alias(after.handle, middle.end); });
  };
  try {
    if (!map_pieces()) {
      undo();
      return std::nullopt;
    }
  } catch (const Error&) {
    undo();
    throw;
  }
  for (const Index index : fresh) handles_[index].accessible = true;
  for (Granules i = first - before.granules; i < first; ++i)
    switch_active(active_granule(handles_[before.handle], i), *at + i);
  for (Granules i = 0; i < after.granules; ++i)
    switch_active(active_granule(handles_[after.handle], i), middle.end + i);
  return (middle.begin - before.granules) * granule_;
}

// After a driver has refused to map a handle twice, aliases are not tried again.
bool Stitched::add_alias(Index index, Granules at) {
  try {
    if (!device_.map(address_at(at), handles_[index].count * granule_, handles_[index].id)) {
      refused_ = true;
      return false;
    }
  } catch (const DriverError&) {
    can_alias_ = false;
    ++version_;
    return false;
  }
  attach_alias(index, {at, address_at(at)});
  return true;
}

// Does nothing if there is no such alias.
void Stitched::drop_alias(Index index, Granules at) {
  if (index == Stitch::kNoHandle) return;
  const std::vector<Mapping>& aliases = handles_[index].aliases;
  const auto it = std::find_if(aliases.begin(), aliases.end(), [&](const Mapping& alias) { return alias.begin == at; });
  if (it == aliases.end()) return;
  device_.unmap(it->address, handles_[index].count * granule_);
  detach_alias(index, static_cast<std::size_t>(it - aliases.begin()));
}

// Unmaps aliases that no block touches and no stream uses any more. Polling for that is cheap.
bool Stitched::drop_unused_aliases(const std::function<bool()>& may_unmap) {
  if (inactive_granules_ == 0) return false;
  bool is_pending = false;
  each_empty_alias([&](Index index, Mapping alias) { is_pending |= !is_done(handles_[index], alias); });
  if (is_pending) poll();
  std::vector<std::pair<Index, Granules>> going;
  each_empty_alias([&](Index index, Mapping alias) {
    if (is_done(handles_[index], alias)) going.emplace_back(index, alias.begin);
  });
  if (going.empty() || !may_unmap()) return false;
  for (const auto& [index, at] : going) drop_alias(index, at);
  return true;
}

// Restores an alias that was just unmapped. If that fails, the data of blocks there is lost.
void Stitched::map_again(Index index, Mapping alias) {
  const Bytes size = handles_[index].count * granule_;
  bool is_back = false;
  ignore_errors([&] { is_back = device_.map(alias.address, size, handles_[index].id) && open(alias.address, size); });
  if (is_back) return;
  const std::vector<Mapping>& aliases = handles_[index].aliases;
  const auto is_it = [&](const Mapping& other) { return other.begin == alias.begin; };
  detach_alias(index, static_cast<std::size_t>(std::find_if(aliases.begin(), aliases.end(), is_it) - aliases.begin()));
}

}  // namespace arena
