// The life of a handle of virtual memory: created, mapped, opened, unmapped, kept as a spare, released. Every driver
// call that fails leaves the handle somewhere: mapped but unused, or in the spare list.
#include <algorithm>
#include <utility>

#include "core/backing/stitched.hpp"

namespace arena {

// The largest spare handle that is needed whole; otherwise the smallest one that there is room for.
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

// An idle handle, chosen like a spare one. Among equals, the one at the highest place: low places fill up first.
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
  while (!id && count > 1) id = device_.create((count /= 2) * granule_, kind_.rdma);  // others use the device, too
  refused_ |= !id;
  if (!id) return kNone;
  const Index index = add_handle(count);
  handles_[index].id = *id;
  note_peak();
  return index;
}

// For a handle that is not in the spare list; if mapping fails, it goes there. False if the driver is out of memory.
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

// Unmaps a handle everywhere. Aliases go first, so that a failure half-way can be undone.
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

// One call for the whole run: everything between the first and the last new handle is mapped.
bool Stitched::open_handles(const std::vector<Index>& fresh) {
  const Granules begin = handles_[fresh.front()].begin, end = handles_[fresh.back()].end();
  bool is_open = false;
  try {
    is_open = open(address_at(begin), (end - begin) * granule_);
  } catch (const Error&) {
    undo_mapping(fresh);
    throw;
  }
  for (const Index index : fresh) handles_[index].accessible = is_open;
  if (!is_open) undo_mapping(fresh);
  refused_ |= !is_open;
  return is_open;
}

bool Stitched::open(std::uint64_t address, Bytes size) {
  try {
    const bool is_open = device_.set_access(address, size, kind_.peers);
    is_proven_ |= is_open;
    return is_open;
  } catch (const DriverError&) {
    if (is_proven_ || kind_.peers.empty() || kind_.are_peers_chosen) throw;
    return open_for_some_peers(address, size);
  }
}

// A peer may be refused although it can access the memory, for example because another process uses it exclusively.
bool Stitched::open_for_some_peers(std::uint64_t address, Bytes size) {
  if (!device_.set_access(address, size, {})) return false;
  std::vector<int> allowed;
  for (const int peer : kind_.peers) {
    ignore_errors([&] {
      if (device_.set_access(address, size, {peer})) allowed.push_back(peer);
    });
  }
  kind_.peers = std::move(allowed);
  is_proven_ = true;
  return true;
}

// Unmaps handles that could not be opened. If that fails, too, they stay mapped but unused.
void Stitched::undo_mapping(const std::vector<Index>& fresh) {
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

// For an unmapped handle that is not in the spare list; if the release fails, it goes there.
void Stitched::release_handle(Index index) {
  try {
    device_.release(handles_[index].id);
  } catch (const Error&) {
    put_spare(index);
    throw;
  }
  returned_ += handles_[index].count;
  remove_handle(index);
}

// Releases the smallest. If that was not used for a place, all are too large for it.
bool Stitched::release_spare(std::size_t& most) {
  if (spare_.empty() || most == 0) return false;
  --most;
  release_handle(take_spare(spare_.begin()->first, 0));
  return true;
}

// Handles that overlap the span only in part come last. They are worth replacing by smaller ones, because the part
// outside is of no use there.
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

// Takes the largest first.
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
    release_handle(index);
  }
  return found;
}

bool Stitched::overlaps(const Handle& handle, Span span) const {
  bool found = false;
  each_mapping(handle,
               [&](Mapping mapping) { found |= Span{mapping.begin, mapping.begin + handle.count}.overlaps(span); });
  return found;
}

}  // namespace arena
