#include "core/backing/plain.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace arena {
namespace {

thread_local int calls = 0;
thread_local std::vector<const void*> asking;  // whose sources this thread is in

// A call of somebody else's function, without the lock.
class Calling {
 public:
  explicit Calling(Lock& lock) : unlocked_(lock) { ++calls; }
  ~Calling() { --calls; }
  Calling(const Calling&) = delete;
  Calling& operator=(const Calling&) = delete;

 private:
  Unlocked unlocked_;
};

}  // namespace

Plain::Plain(const Device& device, Streams& streams, Gaps& gaps, Granules growth, PlainSource source)
    : Backing(device, streams, gaps, kUnit, growth), source_(std::move(source)) {}

bool Plain::is_calling() { return calls > 0; }

Plain::~Plain() {
  for (const Handle& handle : handles_) {
    if (handle.give_back) insist(handle.give_back);
  }
}

void Plain::abandon() {
  // Not even the functions go: what they hold may give itself back at its end.
  new std::vector<Handle>(std::move(handles_));
  handles_.clear();
}

bool Plain::holds(std::uint64_t address) const {
  return std::any_of(handles_.begin(), handles_.end(),
                     [&](const Handle& h) { return h.mapped && address - h.address < h.count * granule_; });
}

bool Plain::overlaps(std::uint64_t address, Bytes size) const {
  return std::any_of(handles_.begin(), handles_.end(), [&](const Handle& h) {
    return h.mapped && address < h.address + h.count * granule_ && h.address < address + size;
  });
}

bool Plain::can_hold(Demand& demand, Granules limit, Moving) const {
  return demand.place || in_use() + granules_for(demand.size) <= limit;
}

Bytes Plain::largest(Granules limit, Moving) const {
  return std::max(gaps_.largest_gap(), (limit > in_use() ? limit - in_use() : 0) * granule_);
}

std::optional<Offset> Plain::back(const Demand& demand, const Limit& limit, Step step, Lock& lock) {
  if (demand.place) return demand.place->offset;
  if (step == Step::kReback) return std::nullopt;
  if (step != Step::kUseFree && demand.may_unmap()) {
    poll();
    const Granules need = granules_for(demand.size), most = limit();
    // If nothing is missing under the limit, the device is short of it.
    const Granules missing = reserved_ + need > most ? reserved_ + need - most : need;
    std::vector<Index> going;
    Granules found = 0;
    for (const Index index : releasable()) {
      if (found >= missing) break;
      going.push_back(index);
      found += handles_[index].count;
    }
    release(going, lock);
  }
  return grow(demand, limit, lock);
}

std::optional<Offset> Plain::back_anew(const Demand& demand, const Limit& limit, Lock& lock) {
  return grow(demand, limit, lock);
}

std::optional<Offset> Plain::grow(const Demand& demand, const Limit& limit, Lock& lock) {
  const Granules need = granules_for(demand.size), most = limit(), left = left_under(most);
  if (left < need) return std::nullopt;
  const Granules count = std::min(left, std::max(need, handle_size(most)));
  std::optional<Offset> offset = add_segment(count, demand.used, limit, lock);
  if (!offset && count > need && left_under(limit()) >= need) offset = add_segment(need, demand.used, limit, lock);
  return offset;
}

// The segment counts as reserved, and as spare, before it is asked for: so the limit holds whoever comes in between. It
// goes back at once if the limit was lowered meanwhile.
std::optional<Offset> Plain::add_segment(Granules count, const Marks& used, const Limit& limit, Lock& lock) {
  if (std::find(asking.begin(), asking.end(), this) != asking.end()) {
    throw UsageError("upstream= asked this arena itself for memory that it was to give");
  }
  const Index index = add_handle(count);
  coming_ += count;
  asking.push_back(this);
  std::optional<PlainMemory> memory;
  try {
    const Calling calling(lock);
    memory = source_(count * granule_);
  } catch (...) {
    asking.pop_back();
    coming_ -= count;
    remove_handle(index);
    throw;
  }
  asking.pop_back();
  coming_ -= count;
  refused_ |= !memory;
  const bool known = memory && overlaps(memory->address, count * granule_);
  if (memory && !known) note_peak();
  bool is_beyond = false;
  quietly([&] { is_beyond = reserved_ > limit(); });
  if (!memory || known || is_beyond) {
    if (memory) {
      const Calling calling(lock);
      insist(memory->give_back);
      memory.reset();
    }
    remove_handle(index);
    if (known) throw UsageError("upstream= gave memory that overlaps what it gave before");
    return std::nullopt;
  }
  handles_[index].give_back = std::move(memory->give_back);
  handles_[index].marks = used;
  const Granules at = room_for(count);
  attach(index, at, memory->address);
  handles_[index].accessible = true;
  for (Granules g = at; g < at + count && !used.empty(); ++g) note_mark(g, *used.begin(), used.count() == 1);
  gaps_.add({at * granule_, (at + count) * granule_}, used);
  return at * granule_;
}

// Where so many granules are free, and one more on each side: gaps of different segments may not meet. Offsets are only
// numbers, so where they are too fragmented there are more.
Granules Plain::room_for(Granules count) {
  Granules run = 0;
  for (Granules g = 0; run < count + 2; ++g) {
    if (g == granules_.size()) granules_.emplace_back();
    run = granules_[g].handle == kNone ? run + 1 : 0;
    if (run == count + 2) return g - count;
  }
  return 0;
}

std::vector<Plain::Index> Plain::releasable() {
  std::vector<Index> found;
  for (Index index = 0; index < handles_.size(); ++index) {
    if (!handles_[index].mapped && handles_[index].give_back) found.push_back(index);
  }
  const BySize& idle = idle_handles();
  for (auto it = idle.rbegin(); it != idle.rend(); ++it) {
    if (!handles_[it->second.second].pending) found.push_back(it->second.second);
  }
  return found;
}

// What goes is out of everybody else's reach before the lock is let go.
void Plain::release(const std::vector<Index>& going, Lock& lock) {
  std::vector<std::pair<Index, std::function<void()>>> leaving;
  for (const Index index : going) {
    if (handles_[index].mapped) {
      gaps_.take(handles_[index].begin * granule_, handles_[index].count * granule_);
      detach(index);
    }
    leaving.emplace_back(index, std::exchange(handles_[index].give_back, {}));
    leaving_ += handles_[index].count;
  }
  std::exception_ptr refused;
  for (auto& [index, give_back] : leaving) {
    bool gone = false;
    try {
      const Calling calling(lock);
      give_back();
      gone = true;
      give_back = {};
    } catch (const Error&) {  // it stays, spare, and is tried again
      refused = std::current_exception();
    }
    leaving_ -= handles_[index].count;
    if (gone) {
      returned_ += handles_[index].count;
      remove_handle(index);
    } else {
      handles_[index].give_back = std::move(give_back);
    }
  }
  if (refused) std::rethrow_exception(refused);
}

// In one piece if possible: a segment can hold nothing larger than itself.
bool Plain::reserve(Granules granules, const Limit& limit, Lock& lock) {
  Granules count = granules;
  while (granules > 0 && count > 0) {
    count = std::min({count, granules, left_under(limit())});
    if (count > 0 && add_segment(count, {}, limit, lock)) {
      granules -= count;
    } else {
      count /= 2;
    }
  }
  return granules == 0;
}

void Plain::trim(Granules keep, Granules most, Lock& lock) {
  poll();
  const auto may_go = [&](Granules left, Granules count) { return left > most || left >= keep + count; };
  std::vector<Index> going;
  Granules left = reserved_ - moving();
  for (const Index index : releasable()) {
    if (!may_go(left, handles_[index].count)) continue;
    going.push_back(index);
    left -= handles_[index].count;
  }
  release(going, lock);
}

}  // namespace arena
