#include "core/plain.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace arena {
namespace {

constexpr Bytes kPlacesPerByte = 8;  // offsets cost nothing, and segments come and go

// For a while without the lock: others may come in between.
class Unlocked {
 public:
  explicit Unlocked(Lock& lock) : lock_(lock) { lock_.unlock(); }
  ~Unlocked() { lock_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  Lock& lock_;
};

}  // namespace

Plain::Plain(const Device& device, Streams& streams, Gaps& gaps, Granules growth, PlainSource source)
    : Backing(device, streams, gaps, kUnit, kPlacesPerByte * round_up(device.total(), kUnit) / kUnit, growth),
      source_(std::move(source)) {}

Plain::~Plain() {
  for (const Handle& handle : handles_) {
    if (handle.give_back) quietly(handle.give_back);
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

bool Plain::could_hold(const std::optional<Place>& place, Bytes size, Granules limit) const {
  return place || round_up(size, granule_) / granule_ <= limit;
}

Bytes Plain::largest(Granules limit) const {
  const Granules in_use = reserved_ - idle_granules_ - spare_granules_;
  return std::max(gaps_.largest_gap(), (limit > in_use ? limit - in_use : 0) * granule_);
}

std::optional<Offset> Plain::back(const std::optional<Place>& place, Bytes size, Granules limit, Effort effort,
                                  Lock& lock) {
  if (place) return place->offset;
  const Granules need = round_up(size, granule_) / granule_;
  if (effort == Effort::kReback) return std::nullopt;
  if (effort != Effort::kAtOnce) {
    poll();
    release_idle(need > left_under(limit) ? need - left_under(limit) : need, lock);
  }
  return grow(need, limit, lock);
}

std::optional<Offset> Plain::back_anew(const std::optional<Place>& place, Bytes size, Granules limit, Lock& lock) {
  return back(place, size, limit, Effort::kAtOnce, lock);
}

std::optional<Offset> Plain::grow(Granules need, Granules limit, Lock& lock) {
  const Granules left = left_under(limit);
  if (left < need) return std::nullopt;
  const Granules count = std::min(left, std::max(need, handle_size(limit)));
  std::optional<Offset> offset = add_segment(count, lock);
  if (!offset && count > need && left_under(limit) >= need) offset = add_segment(need, lock);
  return offset;
}

// The segment counts as reserved, and as spare, before it is asked for: so the limit holds whoever comes in between.
std::optional<Offset> Plain::add_segment(Granules count, Lock& lock) {
  const Index index = add_handle(count);
  std::optional<PlainMemory> memory;
  try {
    const Unlocked unlocked(lock);
    memory = source_(count * granule_);
  } catch (...) {
    remove_handle(index);
    throw;
  }
  const std::optional<Granules> at = memory ? room_for(count) : std::nullopt;
  if (!at) {
    if (memory) {
      const Unlocked unlocked(lock);
      quietly(memory->give_back);
      memory.reset();
    }
    remove_handle(index);
    return std::nullopt;
  }
  handles_[index].give_back = std::move(memory->give_back);
  attach(index, *at, memory->address);
  handles_[index].accessible = true;
  gaps_.add({*at * granule_, (*at + count) * granule_, {}});
  return *at * granule_;
}

// Where so many granules are free, and one more on each side: gaps of different segments may not meet.
std::optional<Granules> Plain::room_for(Granules count) const {
  Granules run = 0;
  for (Granules g = 0; g < granules_.size(); ++g) {
    run = granules_[g].handle == kNone ? run + 1 : 0;
    if (run == count + 2) return g - count;
  }
  return std::nullopt;
}

// The largest first: few segments go.
void Plain::release_idle(Granules wanted, Lock& lock) {
  std::vector<Index> going;
  Granules found = 0;
  for (auto it = idle_.rbegin(); it != idle_.rend() && found < wanted; ++it) {
    if (handles_[it->second.second].pending) continue;
    going.push_back(it->second.second);
    found += it->first;
  }
  release(going, lock);
}

void Plain::release(const std::vector<Index>& going, Lock& lock) {
  for (const Index index : going) {
    if (!handles_[index].mapped) continue;
    gaps_.take(handles_[index].begin * granule_, handles_[index].count * granule_);
    detach(index);
  }
  std::exception_ptr refused;
  for (const Index index : going) {
    std::function<void()> give_back = std::exchange(handles_[index].give_back, {});
    if (!give_back) continue;  // another thread is at it
    try {
      const Unlocked unlocked(lock);
      give_back();
      give_back = {};
    } catch (const Error&) {  // it stays, spare, and is tried again by the next trim
      handles_[index].give_back = std::move(give_back);
      refused = std::current_exception();
      continue;
    }
    remove_handle(index);
  }
  if (refused) std::rethrow_exception(refused);
}

// In one piece if possible: a segment can hold nothing larger than itself.
bool Plain::reserve(Granules granules, Granules limit, Lock& lock) {
  Granules count = granules;
  while (granules > 0 && count > 0) {
    count = std::min({count, granules, left_under(limit)});
    if (count > 0 && add_segment(count, lock)) {
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
  Granules left = reserved_;
  const auto consider = [&](Index index) {
    if (!may_go(left, handles_[index].count)) return;
    going.push_back(index);
    left -= handles_[index].count;
  };
  for (Index index = 0; index < handles_.size(); ++index) {
    if (!handles_[index].mapped && handles_[index].give_back) consider(index);
  }
  for (const auto& [count, entry] : idle_) {
    if (!handles_[entry.second].pending) consider(entry.second);
  }
  release(going, lock);
}

}  // namespace arena
