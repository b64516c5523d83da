#include "core/backing/backing.hpp"

#include <algorithm>

namespace arena {
namespace {

constexpr std::size_t kFewMarks = 4;
constexpr Granules kShare = 8;  // a new handle takes at most an eighth of what is left under the limit

}  // namespace

Backing::Backing(const Device& device, Streams& streams, Gaps& gaps, Bytes granule, Granules growth)
    : device_(device), streams_(streams), gaps_(gaps), granule_(granule), growth_(growth) {}

bool Backing::is_backed(Span span) const {
  for (Granules g = span.begin; g < span.end; ++g) {
    if (granules_[g].handle == kNone || !handles_[granules_[g].handle].accessible) return false;
  }
  return true;
}

bool Backing::is_unmapped(Span span) const {
  for (Granules g = span.begin; g < span.end; ++g) {
    if (granules_[g].handle != kNone) return false;
  }
  return true;
}

bool Backing::has_lost(Span span) const {
  for (Granules g = span.begin; g < span.end; ++g) {
    if (granules_[g].lost) return true;
  }
  return false;
}

Granules Backing::handle_size(Granules limit) const {
  return std::clamp<Granules>(left_under(limit) / kShare, 1, growth_);
}

Backing::Index Backing::add_handle(Granules count) {
  if (unused_.empty()) {
    unused_.push_back(static_cast<Index>(handles_.size()));
    handles_.emplace_back();
  }
  const Index index = unused_.back();
  unused_.pop_back();
  handles_[index].count = count;
  ++version_;
  reserved_ += count;
  spare_granules_ += count;
  return index;
}

void Backing::note_peak() { peak_ = std::max(peak_, reserved_ - incoming_); }

void Backing::remove_handle(Index index) {
  ++version_;
  reserved_ -= handles_[index].count;
  spare_granules_ -= handles_[index].count;
  const bool queued = handles_[index].queued;
  handles_[index] = {};
  handles_[index].queued = queued;
  unused_.push_back(index);
}

void Backing::attach(Index index, Granules at, std::uint64_t address) {
  Handle& handle = handles_[index];
  ++version_;
  handle.address = address;
  handle.begin = at;
  handle.mapped = true;
  handle.touched = 0;
  for (Granules g = at; g < handle.end(); ++g) {
    granules_[g].handle = index;
    handle.touched += granules_[g].blocks > 0;  // only when it replaces another handle
  }
  spare_granules_ -= handle.count;
  backed_end_ = std::max(backed_end_, handle.end());
  if (last_marks_.size() < backed_end_) last_marks_.resize(backed_end_);
  ++maps_;
  if (handle.touched == 0) set_idle(index);
}

void Backing::detach(Index index) {
  Handle& handle = handles_[index];
  ++version_;
  clear_idle(index);
  each_mapping(handle, [&](Mapping mapping) {
    for (Granules g = mapping.begin; g < mapping.begin + handle.count; ++g) {
      granules_[g].handle = kNone;
      last_marks_[g] = {};
      if (granules_[g].inactive) clear_inactive(g);
    }
    ++unmaps_;
  });
  handle.aliases.clear();
  handle.mapped = handle.accessible = false;
  handle.marks = {};
  spare_granules_ += handle.count;
}

// All granules of a new alias are inactive: they are used through other addresses.
void Backing::attach_alias(Index index, Mapping alias) {
  ++version_;
  const Granules end = alias.begin + handles_[index].count;
  handles_[index].aliases.push_back(alias);
  for (Granules g = alias.begin; g < end; ++g) {
    granules_[g].handle = index;
    granules_[g].inactive = true;
    // If blocks touch it, the alias is being restored, and activate_touched() follows.
    if (granules_[g].blocks == 0) gaps_.take(g * granule_, granule_);
  }
  inactive_granules_ += handles_[index].count;
  backed_end_ = std::max(backed_end_, end);
  if (last_marks_.size() < backed_end_) last_marks_.resize(backed_end_);
  ++maps_;
}

// The device must be done with the alias. The data of blocks that are still there is lost.
void Backing::detach_alias(Index index, std::size_t which) {
  Handle& handle = handles_[index];
  ++version_;
  const Granules begin = handle.aliases[which].begin;
  for (Granules i = 0; i < handle.count; ++i) {
    Granule& here = granules_[begin + i];
    if (here.blocks > 0) {
      here.lost = true;
      if (--handle.touched == 0) set_idle(index);
      clear_inactive(handle.begin + i);
    } else {
      if (!here.inactive) switch_active(begin + i, handle.begin + i);
      clear_inactive(begin + i);
    }
    here.handle = kNone;
    last_marks_[begin + i] = {};
  }
  handle.aliases.erase(handle.aliases.begin() + static_cast<std::ptrdiff_t>(which));
  ++unmaps_;
}

// The old address keeps its mark: it must not be unmapped before its last user is done.
void Backing::switch_active(Granules from, Granules to) {
  const Marks marks = gaps_.marks_at(from * granule_);
  gaps_.take(from * granule_, granule_);
  granules_[from].inactive = true;
  granules_[to].inactive = false;
  last_marks_[to] = last_marks_[from];
  gaps_.add({to * granule_, (to + 1) * granule_}, marks);
}

// For a block that touches a granule which counts as inactive.
void Backing::activate_touched(Granules from, Granules to) {
  gaps_.take(from * granule_, granule_);
  granules_[from].inactive = true;
  granules_[to].inactive = false;
  const Index index = granules_[to].handle;
  if (handles_[index].touched++ == 0) clear_idle(index);
}

// The granule has no other address any more, so it becomes an ordinary gap.
void Backing::clear_inactive(Granules granule) {
  granules_[granule].inactive = false;
  --inactive_granules_;
  gaps_.add({granule * granule_, (granule + 1) * granule_}, {});
}

Backing::Mapping Backing::alias_at(const Handle& handle, Granules granule) {
  return *std::find_if(handle.aliases.begin(), handle.aliases.end(),
                       [&](const Mapping& alias) { return granule - alias.begin < handle.count; });
}

void Backing::set_idle(Index index) {
  Handle& handle = handles_[index];
  handle.idle = true;
  handle.pending = !streams_.reached(handle.marks);
  idle_granules_ += handle.count;
  if (handle.pending) pending_granules_ += handle.count;
  if (!handle.queued) unsorted_.push_back(index);
  handle.queued = true;
}

void Backing::clear_idle(Index index) {
  Handle& handle = handles_[index];
  if (!handle.idle) return;
  if (handle.sorted) idle_.erase({handle.count, {handle.begin, index}});
  idle_granules_ -= handle.count;
  if (handle.pending) pending_granules_ -= handle.count;
  handle.idle = handle.sorted = handle.pending = false;
}

const Backing::BySize& Backing::idle_handles() {
  for (const Index index : unsorted_) {
    Handle& handle = handles_[index];
    handle.queued = false;
    if (!handle.idle || handle.sorted) continue;
    idle_.insert({handle.count, {handle.begin, index}});
    handle.sorted = true;
  }
  unsorted_.clear();
  return idle_;
}

void Backing::touch(Span span) {
  ++version_;
  for (Granules g = span.begin; g < span.end; ++g) {
    if (granules_[g].blocks++ > 0) continue;
    ++touched_granules_;
    Handle& handle = handles_[granules_[g].handle];
    if (handle.pins > 0) --pinned_granules_;
    if (handle.touched++ == 0) clear_idle(granules_[g].handle);
  }
}

bool Backing::is_shared(StreamIndex user, Span span) const {
  for (Granules g = span.begin; g < span.end; ++g) {
    if (is_shared(user, g)) return true;
  }
  return false;
}

// The last mark of each stream in these granules. A granule may reach beyond the gap; inside the gap, a mark is no
// later than the gap's own.
Marks Backing::marks_in(Span span, const Marks& marks) const {
  Marks found;
  const Granules end = std::min<Granules>(span.end, last_marks_.size());
  for (Granules g = span.begin; g < end; ++g) {
    const Mark last = last_marks_[g];
    if (last.number == kSeveral.number) return marks;
    for (const Mark mark : marks) {
      if (mark.stream == last.stream && last.number > 0) found.add({mark.stream, std::min(mark.number, last.number)});
    }
  }
  return found;
}

std::optional<Offset> Backing::find_unshared(StreamIndex user, const Gap& gap, Bytes size, int& left) const {
  Offset begin = gap.begin;
  const Granules last = std::min(backed_end_, unit_.count(unit_.up(gap.end)));
  for (Granules g = unit_.count(gap.begin); g < last && left > 0; ++g, --left) {
    const Offset end = std::min(gap.end, (g + 1) * granule_);
    if (!is_backed({g, g + 1}) || is_shared(user, g)) {
      begin = end;
    } else if (end - begin >= size) {
      return begin;
    }
  }
  return std::nullopt;
}

void Backing::untouch(Span span, const Marks& marks) {
  ++version_;
  const Mark mark = *marks.begin();
  const bool is_only = marks.count() == 1;
  Index joined = kNone;
  for (Granules g = span.begin; g < span.end; ++g) {
    Granule& granule = granules_[g];
    const Index index = granule.handle;
    if (index != kNone) {
      note_mark(g, mark, is_only);
      if (index != joined) {
        Marks& all = handles_[index].marks;
        all.join(marks);
        if (all.count() > kFewMarks) streams_.reached(all);  // drops reached ones
        joined = index;
      }
    }
    if (--granule.blocks > 0) continue;
    --touched_granules_;
    granule.lost = false;
    if (index == kNone) continue;
    if (handles_[index].pins > 0) ++pinned_granules_;
    if (--handles_[index].touched == 0) set_idle(index);
  }
}

Backing::SavedMarks Backing::save_marks(Span span) const {
  SavedMarks found;
  for (Granules g = span.begin; g < span.end; g = end_of_mapping(g)) {
    found.handles.emplace_back(granules_[g].handle, handles_[granules_[g].handle].marks);
  }
  const auto first = last_marks_.begin() + static_cast<std::ptrdiff_t>(span.begin);
  found.granules.assign(first, first + static_cast<std::ptrdiff_t>(span.count()));
  return found;
}

void Backing::touch_and_restore(Span span, const SavedMarks& marks) {
  touch(span);
  for (const auto& [index, before] : marks.handles) handles_[index].marks = before;
  std::copy(marks.granules.begin(), marks.granules.end(),
            last_marks_.begin() + static_cast<std::ptrdiff_t>(span.begin));
}

void Backing::pin(Span span) {
  ++version_;
  Index last = kNone;
  for (Granules g = span.begin; g < span.end; ++g) {
    const Index index = granules_[g].handle;
    if (index == last) continue;
    last = index;
    Handle& handle = handles_[index];
    if (handle.pins++ == 0) pinned_granules_ += handle.count - handle.touched;
  }
}

void Backing::unpin(Span span) {
  ++version_;
  Index last = kNone;
  for (Granules g = span.begin; g < span.end; ++g) {
    const Index index = granules_[g].handle;
    if (index == last || index == kNone) continue;
    last = index;
    Handle& handle = handles_[index];
    if (--handle.pins == 0) pinned_granules_ -= handle.count - handle.touched;
  }
}

// Gaps without a middle, and the edges of the others, lie in touched granules, which are backed.
Bytes Backing::largest_free() const {
  if (largest_free_.version == version_) return largest_free_.size;
  Bytes best = gaps_.largest_edge();
  gaps_.each_with_middle([&](const Gap& gap) {
    const Granules first = round_up(gap.begin, granule_) / granule_, last = gap.end / granule_;
    Bytes run = first * granule_ - gap.begin;
    for (Granules g = first; g < std::min(last, backed_end_); ++g) {
      run = granules_[g].handle == kNone ? 0 : run + granule_;
      best = std::max(best, run);
    }
    if (last <= backed_end_) best = std::max(best, run + gap.end - last * granule_);
  });
  largest_free_ = {version_, best};
  return best;
}

Place Backing::find_mapped(Bytes size) const {
  return *gaps_.find_cheapest(size, backed_end_, [this](Granules g) { return granules_[g].handle == kNone; });
}

bool Backing::is_empty(const Handle& handle, Mapping mapping) const {
  for (Granules g = mapping.begin; g < mapping.begin + handle.count; ++g) {
    if (granules_[g].blocks > 0) return false;
  }
  return true;
}

bool Backing::is_done(const Handle& handle, Mapping mapping) const {
  for (Granules g = mapping.begin; g < mapping.begin + handle.count; ++g) {
    if (last_marks_[g].number == kSeveral.number) {
      const auto is_reached = [&](Mark mark) { return streams_.reached(mark); };
      return std::all_of(handle.marks.begin(), handle.marks.end(), is_reached);
    }
    if (!streams_.reached(last_marks_[g])) return false;
  }
  return true;
}

Marks Backing::pending_marks() {
  Marks all;
  if (inactive_granules_ > 0) {
    each_empty_alias([&](Index index, Mapping alias) {
      if (!is_done(handles_[index], alias)) all.join(handles_[index].marks);
    });
  }
  for (const auto& [size, entry] : idle_handles()) {
    if (handles_[entry.second].pending) all.join(handles_[entry.second].marks);
  }
  return all;
}

void Backing::poll(EventScope scope) {
  if (pending_granules_ == 0 && inactive_granules_ == 0) return;
  streams_.poll(pending_marks(), scope);
  for (const auto& [size, entry] : idle_handles()) {
    Handle& handle = handles_[entry.second];
    if (!handle.pending || !streams_.reached(handle.marks)) continue;
    handle.pending = false;
    pending_granules_ -= handle.count;
    each_mapping(handle, [&](Mapping mapping) {
      std::fill_n(last_marks_.begin() + static_cast<std::ptrdiff_t>(mapping.begin), handle.count, Mark{});
    });
  }
}

Backing::TemporaryPoll::TemporaryPoll(Backing& backing) : backing_(backing) {
  for (const auto& [size, entry] : backing.idle_handles()) {
    const Handle& handle = backing.handles_[entry.second];
    if (handle.pending && backing.streams_.query_reached(handle.marks)) reached_.push_back(entry.second);
  }
  for (const Index index : reached_) {
    backing.handles_[index].pending = false;
    backing.pending_granules_ -= backing.handles_[index].count;
  }
}

Backing::TemporaryPoll::~TemporaryPoll() {
  for (const Index index : reached_) {
    backing_.handles_[index].pending = true;
    backing_.pending_granules_ += backing_.handles_[index].count;
  }
}

std::optional<std::string> Backing::problem() const {
  Granules reserved = 0, spare = 0, idle = 0, pending = 0, touched = 0, pinned = 0, inactive = 0;
  for (Index index = 0; index < handles_.size(); ++index) {
    const Handle& handle = handles_[index];
    reserved += handle.count;
    if (!handle.mapped) {
      spare += handle.count;
      continue;
    }
    Granules mine = 0;
    std::vector<int> uses(handle.count);
    bool is_known = true;
    each_mapping(handle, [&](Mapping mapping) {
      for (Granules i = 0; i < handle.count; ++i) {
        const Granule& granule = granules_[mapping.begin + i];
        is_known &= granule.handle == index && !(granule.inactive && granule.blocks > 0);
        mine += granule.blocks > 0;
        uses[i] += !granule.inactive;
      }
    });
    inactive += handle.count * handle.aliases.size();
    if (!is_known) return "a granule is not linked to the handle that backs it";
    if (std::any_of(uses.begin(), uses.end(), [](int n) { return n != 1; }))
      return "a granule is active at no address, or at two";
    if (mine != handle.touched) return "a handle's count of touched granules is wrong";
    if (handle.idle != (mine == 0)) return "a handle's idle flag is wrong";
    if (handle.idle && !handle.sorted && !handle.queued)
      return "an idle handle is missing from the list of idle handles";
    if (mine == 0 && handle.pins > 0) return "an idle handle is pinned";
    if (mine == 0) idle += handle.count;
    if (mine == 0 && handle.pending) pending += handle.count;
    if (handle.pins > 0) pinned += handle.count - mine;
    touched += mine;
  }
  for (const Granule& granule : granules_) {
    if (granule.blocks == 0 || granule.handle != kNone) continue;
    if (!granule.lost) return "a touched granule is not backed";
    ++touched;
  }
  if (reserved != reserved_ || spare != spare_granules_ || idle != idle_granules_ || pending != pending_granules_ ||
      touched != touched_granules_ || pinned != pinned_granules_ || inactive != inactive_granules_) {
    return "the sums over all handles differ from the running totals";
  }
  return std::nullopt;
}

}  // namespace arena
