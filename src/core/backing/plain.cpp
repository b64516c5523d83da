#include "core/backing/plain.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace arena {
namespace {

thread_local int upstream_calls = 0;
thread_local std::vector<const void*> sources_called;  // the backings whose source this thread is in

// A call to the source or its give_back, without the lock.
class UpstreamCall {
 public:
  explicit UpstreamCall(Lock& lock) : unlocked_(lock) { ++upstream_calls; }
  ~UpstreamCall() { --upstream_calls; }
  UpstreamCall(const UpstreamCall&) = delete;
  UpstreamCall& operator=(const UpstreamCall&) = delete;

 private:
  Unlocked unlocked_;
};

}  // namespace

Plain::Plain(const Device& device, Streams& streams, Gaps& gaps, Granules growth, PlainSource source)
    : Backing(device, streams, gaps, kUnit, growth), source_(std::move(source)) {}

bool Plain::is_in_upstream_call() { return upstream_calls > 0; }

Plain::~Plain() {
  for (const Handle& handle : handles_) {
    if (handle.give_back) try_twice(handle.give_back);
  }
}

void Plain::abandon() {
  // Leaks the functions, too: destroying what they hold may release memory.
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
    // If nothing is missing under the limit, the device is short of memory.
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

std::optional<Offset> Plain::back_with_new(const Demand& demand, const Limit& limit, Lock& lock) {
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

// The segment counts as reserved and spare before the source is called, so the limit holds for other threads, too. It
// is released at once if the limit was lowered during the call.
std::optional<Offset> Plain::add_segment(Granules count, const Marks& used, const Limit& limit, Lock& lock) {
  if (std::find(sources_called.begin(), sources_called.end(), this) != sources_called.end()) {
    throw UsageError("upstream= asked this arena itself for memory; it must get memory from somewhere else");
  }
  const Index index = add_handle(count);
  incoming_ += count;
  sources_called.push_back(this);
  std::optional<PlainMemory> memory;
  try {
    const UpstreamCall call(lock);
    memory = source_(count * granule_);
  } catch (...) {
    sources_called.pop_back();
    incoming_ -= count;
    remove_handle(index);
    throw;
  }
  sources_called.pop_back();
  incoming_ -= count;
  refused_ |= !memory;
  const bool known = memory && overlaps(memory->address, count * granule_);
  if (memory && !known) note_peak();
  bool is_beyond = false;
  ignore_errors([&] { is_beyond = reserved_ > limit(); });
  if (!memory || known || is_beyond) {
    if (memory) {
      const UpstreamCall call(lock);
      try_twice(memory->give_back);
      memory.reset();
    }
    remove_handle(index);
    if (known) throw UsageError("upstream= returned memory that overlaps a segment it returned before");
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

// A free range of offsets with an extra granule on each side, so that gaps of different segments are never adjacent.
// Offsets are just numbers: if they are too fragmented, the range is extended.
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

// Takes the segments out of use before the lock is released.
void Plain::release(const std::vector<Index>& going, Lock& lock) {
  std::vector<std::pair<Index, std::function<void()>>> leaving;
  for (const Index index : going) {
    if (handles_[index].mapped) {
      gaps_.take(handles_[index].begin * granule_, handles_[index].count * granule_);
      detach(index);
    }
    leaving.emplace_back(index, std::exchange(handles_[index].give_back, {}));
    outgoing_ += handles_[index].count;
  }
  std::exception_ptr refused;
  for (auto& [index, give_back] : leaving) {
    bool gone = false;
    try {
      const UpstreamCall call(lock);
      give_back();
      gone = true;
      give_back = {};
    } catch (const Error&) {  // stays spare, to be tried again
      refused = std::current_exception();
    }
    outgoing_ -= handles_[index].count;
    if (gone) {
      returned_ += handles_[index].count;
      remove_handle(index);
    } else {
      handles_[index].give_back = std::move(give_back);
    }
  }
  if (refused) std::rethrow_exception(refused);
}

// In one piece if possible: a segment cannot hold a request larger than itself.
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
  Granules left = reserved_ - in_transit();
  for (const Index index : releasable()) {
    if (!may_go(left, handles_[index].count)) continue;
    going.push_back(index);
    left -= handles_[index].count;
  }
  release(going, lock);
}

}  // namespace arena
