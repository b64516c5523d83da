#include "core/backing.hpp"

#include <algorithm>
#include <exception>

namespace arena {
namespace {

constexpr Granules kShare = 8;  // a new handle takes at most this part of what is left under the limit

bool overlap(Span a, Span b) { return a.begin < b.end && b.begin < a.end; }

}  // namespace

Backing::Backing(const Device& device, Streams& streams, std::uint64_t address, Granules granules, Granules growth)
    : device_(device), streams_(streams), address_(address), growth_(growth), granules_(granules) {}

Backing::~Backing() {
  for (const Handle& handle : handles_) {
    if (handle.count == 0) continue;
    try {
      if (handle.mapped) device_.unmap(address_of(handle.begin), handle.count * device_.granule());
      device_.release(handle.id);
    } catch (const Error&) {  // the driver is gone, and the memory with it
    }
  }
}

bool Backing::is_backed(Span span) const {
  for (Granules g = span.begin; g < span.end; ++g) {
    if (granules_[g].handle == kNone || !handles_[granules_[g].handle].accessible) return false;
  }
  return true;
}

// How many granules from here on nothing is mapped at.
Granules Backing::room_at(Granules granule, Granules most) const {
  Granules count = 0;
  while (count < most && granule + count < granules_.size() && granules_[granule + count].handle == kNone) ++count;
  return count;
}

Granules Backing::handle_size(Granules limit) const {
  const Granules left = limit > reserved_ ? limit - reserved_ : 0;
  return std::clamp<Granules>(left / kShare, 1, growth_);
}

Backing::Index Backing::new_slot() {
  if (unused_.empty()) {
    handles_.emplace_back();
    return static_cast<Index>(handles_.size() - 1);
  }
  const Index index = unused_.back();
  unused_.pop_back();
  return index;
}

Backing::Index Backing::create(Granules count) {
  std::optional<cu::MemHandle> id = device_.create(count * device_.granule());
  while (!id && count > 1) id = device_.create((count /= 2) * device_.granule());  // others use the device too
  if (!id) return kNone;
  const Index index = new_slot();
  handles_[index] = {*id, 0, count, 0, false, false, false, {}};
  reserved_ += count;
  peak_ = std::max(peak_, reserved_);
  return index;
}

void Backing::map(Index index, Granules at) {
  Handle& handle = handles_[index];
  try {
    device_.map(address_of(at), handle.count * device_.granule(), handle.id);
  } catch (const Error&) {
    put_spare(index);
    throw;
  }
  handle.begin = at;
  handle.mapped = true;
  handle.touched = 0;
  for (Granules g = at; g < handle.end(); ++g) {
    granules_[g].handle = index;
    handle.touched += granules_[g].blocks > 0;  // only when it takes another handle's place
  }
  ++maps_;
  if (handle.touched == 0) set_idle(index);
}

void Backing::unmap(Index index) {
  Handle& handle = handles_[index];
  device_.unmap(address_of(handle.begin), handle.count * device_.granule());
  clear_idle(index);
  for (Granules g = handle.begin; g < handle.end(); ++g) granules_[g].handle = kNone;
  handle.mapped = handle.accessible = false;
  handle.marks = {};
  ++unmaps_;
}

// A handle that is mapped nowhere and not among the spare ones, where it goes if the driver does not take it.
void Backing::give_back(Index index) {
  Handle& handle = handles_[index];
  try {
    device_.release(handle.id);
  } catch (const Error&) {
    put_spare(index);
    throw;
  }
  reserved_ -= handle.count;
  handle = {};
  unused_.push_back(index);
}

void Backing::set_idle(Index index) {
  Handle& handle = handles_[index];
  handle.pending = !streams_.reached(handle.marks);
  idle_.insert({handle.count, {handle.begin, index}});
  idle_granules_ += handle.count;
  if (handle.pending) pending_granules_ += handle.count;
}

void Backing::clear_idle(Index index) {
  Handle& handle = handles_[index];
  if (idle_.erase({handle.count, {handle.begin, index}}) == 0) return;
  idle_granules_ -= handle.count;
  if (handle.pending) pending_granules_ -= handle.count;
  handle.pending = false;
}

// The largest spare handle that is needed whole; otherwise the smallest that there is room for.
Backing::Index Backing::take_spare(Granules need, Granules room) {
  auto it = spare_.upper_bound({need, {~Granules{0}, kNone}});
  if (it != spare_.begin()) {
    --it;
  } else if (it == spare_.end() || it->first > room) {
    return kNone;
  }
  const Index index = it->second.second;
  spare_granules_ -= it->first;
  spare_.erase(it);
  return index;
}

// An idle handle, chosen like a spare one, and among equals the one at the highest place: low places fill up first.
Backing::Index Backing::harvest(Granules need, Granules room, Span keep) {
  const auto usable = [&](const auto& entry) {
    const Handle& handle = handles_[entry.second.second];
    return !handle.pending && !overlap({handle.begin, handle.end()}, keep);
  };
  const auto middle = idle_.upper_bound({need, {~Granules{0}, kNone}});
  for (auto it = middle; it != idle_.begin();) {
    if (usable(*--it)) return it->second.second;
  }
  Index found = kNone;
  for (auto it = middle; it != idle_.end() && it->first <= room; ++it) {
    if (found != kNone && it->first != handles_[found].count) break;
    if (usable(*it)) found = it->second.second;
  }
  return found;
}

bool Backing::back(Span span, Granules limit) {
  std::vector<Index> fresh;
  bool complete = true;
  try {
    for (Granules g = span.begin; g < span.end; ++g) {
      if (granules_[g].handle != kNone) continue;
      const Granules need = room_at(g, span.end - g), room = room_at(g, std::max(need, growth_));
      Index index = take_spare(need, room);
      if (index == kNone) {
        index = harvest(need, room, span);
        if (index != kNone) unmap(index);
      }
      if (index == kNone && reserved_ < limit) index = create(std::min(room, handle_size(limit)));
      if (index == kNone) {
        complete = false;
        break;
      }
      map(index, g);
      fresh.push_back(index);
    }
  } catch (const Error&) {
    retract(fresh);
    throw;
  }
  // Older ones that the driver once refused to open are tried again.
  for (Granules g = span.begin; g < span.end && complete; g = handles_[granules_[g].handle].end()) {
    const Index index = granules_[g].handle;
    const bool is_fresh = std::find(fresh.begin(), fresh.end(), index) != fresh.end();
    if (!handles_[index].accessible && !is_fresh) allow({index});
  }
  if (!fresh.empty()) allow(fresh);
  return complete;
}

// One call for the whole run: all between the first and the last new handle is mapped.
void Backing::allow(const std::vector<Index>& fresh) {
  const Granules begin = handles_[fresh.front()].begin, end = handles_[fresh.back()].end();
  try {
    device_.set_access(address_of(begin), (end - begin) * device_.granule());
  } catch (const Error&) {
    retract(fresh);
    throw;
  }
  for (const Index index : fresh) handles_[index].accessible = true;
}

// What could not be made accessible is not left mapped, unless the driver refuses that as well; it is not used then.
void Backing::retract(const std::vector<Index>& fresh) {
  for (const Index index : fresh) {
    if (handles_[index].touched > 0) continue;
    try {
      unmap(index);
      put_spare(index);
    } catch (const Error&) {
    }
  }
}

void Backing::put_spare(Index index) {
  spare_.insert({handles_[index].count, {0, index}});
  spare_granules_ += handles_[index].count;
}

Granules Backing::release_idle(Granules wanted, Span keep) {
  std::vector<Index> going;
  Granules found = 0;
  for (auto it = idle_.rbegin(); it != idle_.rend() && found < wanted; ++it) {
    const Handle& handle = handles_[it->second.second];
    if (handle.pending || overlap({handle.begin, handle.end()}, keep)) continue;
    going.push_back(it->second.second);
    found += handle.count;
  }
  for (const Index index : going) {
    unmap(index);
    give_back(index);
  }
  return found;
}

bool Backing::reback(Span keep) {
  Index best = kNone;
  Granules most = 0;
  for (Index index = 0; index < handles_.size(); ++index) {
    const Handle& handle = handles_[index];
    if (!handle.mapped || handle.count == 1) continue;
    Granules untouched = 0;
    for (Granules g = handle.begin; g < handle.end(); ++g) {
      untouched += granules_[g].blocks == 0 && !overlap({g, g + 1}, keep);
    }
    if (untouched > most) {
      most = untouched;
      best = index;
    }
  }
  if (best == kNone) return false;
  replace(best, keep);
  ++rebacked_;
  return true;
}

// What is touched goes to the host and comes back, so the limit holds at every moment. Until the old handle is given
// back a failure of the driver undoes everything; afterwards there is a moment in which the data is in host memory
// only, and a driver that then refuses the memory that it has just got has lost it.
void Backing::replace(Index index, Span keep) {
  const Handle old = handles_[index];
  const Bytes size = device_.granule();
  std::vector<Granules> kept;
  std::vector<char> staged;
  for (Granules g = old.begin; g < old.end(); ++g) {
    if (granules_[g].blocks == 0 && !overlap({g, g + 1}, keep)) continue;
    kept.push_back(g);
    staged.resize(kept.size() * size);
    if (granules_[g].blocks > 0) {
      device_.copy_to_host(staged.data() + (kept.size() - 1) * size, address_of(g), size);
    }
  }
  unmap(index);
  try {
    give_back(index);
  } catch (const Error&) {
    remount(take_spare_exactly(index), old.begin, old.marks);
    throw;
  }
  std::exception_ptr lost;  // one granule that is lost must not take the others along
  for (std::size_t i = 0; i < kept.size(); ++i) {
    try {
      const Index small = create(1);
      if (small == kNone) throw Error("the device took memory back that it had just been given; data was lost");
      remount(small, kept[i], old.marks);
      if (handles_[small].touched > 0) restore(kept[i], staged.data() + i * size);
    } catch (const Error&) {
      if (!lost) lost = std::current_exception();
    }
  }
  // The copies are staged, not done: whoever is handed memory on another stream next must find it whole.
  device_.synchronize();
  if (lost) std::rethrow_exception(lost);
}

// Copies a granule back, with a second try: nothing else holds the data now.
void Backing::restore(Granules granule, const char* data) {
  try {
    device_.copy_from_host(address_of(granule), data, device_.granule());
  } catch (const Error&) {
    device_.copy_from_host(address_of(granule), data, device_.granule());
  }
}

// Maps a handle under what may be live data, with the marks of the handle that was there before.
void Backing::remount(Index index, Granules at, const Marks& marks) {
  map(index, at);
  handles_[index].marks = marks;
  allow({index});
}

Backing::Index Backing::take_spare_exactly(Index index) {
  spare_.erase({handles_[index].count, {0, index}});
  spare_granules_ -= handles_[index].count;
  return index;
}

void Backing::touch(Span span) {
  for (Granules g = span.begin; g < span.end; ++g) {
    if (granules_[g].blocks++ > 0) continue;
    ++touched_granules_;
    const Index index = granules_[g].handle;
    if (handles_[index].touched++ == 0) clear_idle(index);
  }
}

void Backing::leave(Span span, const Marks& marks) {
  for (Granules g = span.begin; g < span.end; ++g) {
    const Index index = granules_[g].handle;
    if (index != kNone) handles_[index].marks.join(marks);
    if (--granules_[g].blocks > 0) continue;
    --touched_granules_;
    if (index != kNone && --handles_[index].touched == 0) set_idle(index);  // none: it was lost in a re-backing
  }
}

Marks Backing::pending_marks() const {
  Marks all;
  for (const auto& [size, entry] : idle_) {
    if (handles_[entry.second].pending) all.join(handles_[entry.second].marks);
  }
  return all;
}

void Backing::poll() {
  streams_.poll(pending_marks());
  for (const auto& [size, entry] : idle_) {
    Handle& handle = handles_[entry.second];
    if (!handle.pending || !streams_.reached(handle.marks)) continue;
    handle.pending = false;
    pending_granules_ -= handle.count;
  }
}

bool Backing::reserve(Granules granules, Granules limit) {
  while (granules > 0) {
    if (reserved_ >= limit) return false;
    const Index index = create(std::min({granules, growth_, limit - reserved_}));
    if (index == kNone) return false;
    put_spare(index);
    granules -= std::min(granules, handles_[index].count);
  }
  return true;
}

void Backing::trim(Granules keep, Granules most) {
  poll();
  const auto may_go = [&](Granules left, Granules count) { return left > most || left >= keep + count; };
  while (!spare_.empty() && may_go(reserved_, spare_.begin()->first)) {
    give_back(take_spare(spare_.begin()->first, 0));
  }
  std::vector<Index> going;
  Granules left = reserved_;
  for (const auto& [count, entry] : idle_) {
    if (handles_[entry.second].pending || !may_go(left, count)) continue;
    going.push_back(entry.second);
    left -= count;
  }
  for (const Index index : going) {
    unmap(index);
    give_back(index);
  }
}

std::optional<std::string> Backing::problem() const {
  Granules reserved = 0, spare = 0, idle = 0, pending = 0, touched = 0;
  for (Index index = 0; index < handles_.size(); ++index) {
    const Handle& handle = handles_[index];
    reserved += handle.count;
    if (!handle.mapped) {
      spare += handle.count;
      continue;
    }
    Granules mine = 0;
    for (Granules g = handle.begin; g < handle.end(); ++g) {
      if (granules_[g].handle != index) return "a granule does not know the handle that backs it";
      mine += granules_[g].blocks > 0;
    }
    if (mine != handle.touched) return "a handle counts its touched granules wrongly";
    if (mine == 0) idle += handle.count;
    if (mine == 0 && handle.pending) pending += handle.count;
    touched += mine;
  }
  for (const Granule& granule : granules_) {
    if (granule.blocks > 0 && granule.handle == kNone) return "a touched granule is not backed";
  }
  if (reserved != reserved_ || spare != spare_granules_ || idle != idle_granules_ || pending != pending_granules_ ||
      touched != touched_granules_) {
    return "the sums over all handles differ from the running counts";
  }
  return std::nullopt;
}

}  // namespace arena
