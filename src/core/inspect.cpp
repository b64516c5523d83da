// How the arena looks at itself: the account, everything there is, why a request fails, and whether all is consistent.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/units.hpp"
#include "core/arena.hpp"

namespace arena {
namespace {

// Says for which mode it holds, if that makes a difference.
std::string largest_in_words(Bytes largest, Bytes by_moving, const Stats& stats) {
  const Bytes still = std::min(largest, stats.largest_without_moving);
  const std::string text = format_bytes(largest);
  if (by_moving > largest) return text + " without moving live data, " + format_bytes(by_moving) + " with moving";
  if (still < largest) return text + " with moving live data, " + format_bytes(still) + " without moving";
  return text;
}

}  // namespace

Bytes Arena::reserved() const {
  check_process();
  const std::lock_guard held(mutex_.to_look());
  return backing_->reserved() * backing_->granule();
}

bool Arena::is_compactable() {
  check_process();
  const std::lock_guard held(mutex_.to_look());
  lay_down();
  return backing_->compactable() > 0;
}

Bytes Arena::cap() const {
  check_process();
  const std::lock_guard held(mutex_.to_look());
  return settings_.cap;
}

std::optional<Stats> Arena::try_stats(bool may_reback) {
  check_process();
  const std::unique_lock held(mutex_.to_look(), std::try_to_lock);
  if (!held) return std::nullopt;
  lay_down();
  return figures(may_reback);
}

Stats Arena::stats(bool may_reback) {
  check_process();
  const std::lock_guard held(mutex_.to_look());
  lay_down();
  return figures(may_reback);
}

// What is on its way here counts as reserved, but is not taken yet.
Bytes Arena::taken() const { return (backing_->reserved() - backing_->coming()) * backing_->granule(); }

Bytes Arena::device_free() const {
  const Bytes was = last_free_ + last_taken_;
  return was - std::min(was, taken());
}

// Without the lock: it may take long. What came or went at the same time, or is about to be gone, may or may not be in
// the answer: rather too little is taken to be free.
void Arena::require_answer(Lock& held) {
  const Bytes before = taken(), returned = backing_->returned();
  Bytes free = 0;
  {
    const Unlocked unlocked(held);
    free = device_.free();
  }
  last_free_ = free;
  const Bytes gone = backing_->returned() - returned + backing_->leaving() * backing_->granule();
  last_taken_ = before - std::min(before, gone);
}

// A driver that fails to answer does not keep the arena from giving its account.
void Arena::ask_device(Lock& held) {
  quietly([&] { require_answer(held); });
}

// What is taken must leave the headroom free: not without an answer.
void Arena::ask_before_growing(const Request& wanted, Lock& held) {
  if (settings_.headroom > 0 && !std::exchange(wanted.has_asked, true)) require_answer(held);
}

void Arena::ask_device(const Request& wanted, Lock& held) {
  if (!std::exchange(wanted.has_asked, true)) ask_device(held);
}

void Arena::ask_device() {
  Lock held = lock(When::kAlways);
  ask_device(held);
}

Bytes Arena::addresses() const {
  const Lock held = lock(When::kAlways);
  return plain_ ? 0 : backing_->size();
}

std::vector<int> Arena::peers() const {
  const Lock held = lock(When::kAlways);
  return backing_->kind().peers;
}

bool Arena::rdma() const {
  const Lock held = lock(When::kAlways);
  return backing_->kind().rdma;
}

std::string Arena::remark() const {
  const Lock held = lock(When::kAlways);
  return start_.remark;
}

Stats Arena::figures(bool may_reback) const {
  Stats s = counts();
  s.device_free = device_free();
  const Granules most = reach_with(s.device_free);
  s.largest_without_moving = s.largest_with_moving = backing_->largest(most, false);
  if (s.compactable > 0) s.largest_with_moving = backing_->largest(most, true);
  s.largest = may_reback ? s.largest_with_moving : s.largest_without_moving;
  return s;
}

// Seldom: only after the driver gave more than ever before.
void Arena::note_peak() {
  if (backing_->reserved() * backing_->granule() > peak_.stats.reserved) peak_ = {counts(), backing_->largest_free()};
}

void Arena::add_counts(Stats& s) const {
  const Fronts::Held held(fronts_);
  const Sums sums = tallies_.sums();
  s.requested = static_cast<Bytes>(sums.requested);
  s.live = static_cast<Bytes>(sums.live);
  s.blocks = static_cast<std::uint64_t>(sums.blocks);
  s.hits = hits_;
  fronts_.each([&](const Front& front) {
    s.allocations += front.allocations();
    s.hits += front.hits();
  });
}

Stats Arena::counts() const {
  const Bytes granule = backing_->granule();
  Stats s;
  add_counts(s);
  s.reserved = backing_->reserved() * granule;
  s.rounding = s.live - s.requested;
  s.pending = backing_->pending() * granule;
  for (const auto& graph : graphs_) s.captured += graph->free_bytes();
  s.releasable = backing_->idle() * granule - s.pending;
  s.spare = backing_->spare() * granule;
  s.stranded = s.reserved - s.live - s.pending - s.captured - s.releasable - s.spare;
  s.compactable = backing_->compactable() * granule;
  s.cap = settings_.cap;
  s.headroom = settings_.headroom;
  s.device_total = device_.total();
  s.peak_requested = static_cast<Bytes>(tallies_.peak().requested);
  s.peak_live = static_cast<Bytes>(tallies_.peak().live);
  s.peak_reserved = backing_->peak() * granule;
  s.splits = splits_;
  s.failures = failures_;
  s.maps = backing_->maps();
  s.unmaps = backing_->unmaps();
  s.rebacked = backing_->rebacked();
  s.driver_calls = device_.calls();
  s.waits = streams_.waits();
  return s;
}

Snapshot Arena::snapshot(bool may_reback) {
  Lock held = lock(When::kAlways);
  ask_device(held);
  lay_down();
  std::optional<Backing::Look> look;
  if (!streams_.any_capturing()) {
    const Relaxed relaxed(device_);
    streams_.can_tell(backing_->pending_marks(), Means::kStreams);
    look.emplace(*backing_);
  }
  Snapshot snapshot;
  snapshot.stats = figures(may_reback);
  snapshot.next_serial = fronts_.begin_serials();
  snapshot.largest_free = backing_->largest_free();
  snapshot.peak = peak_;
  snapshot.granule = backing_->granule();
  snapshot.plain = plain_;
  snapshot.addresses = plain_ ? 0 : backing_->size();
  snapshot.peers = backing_->kind().peers;
  snapshot.remark = start_.remark;
  add_segments(snapshot);
  add_pieces(snapshot);
  return snapshot;
}

// Of each range of addresses, the part that was ever backed is enough: the rest is as large as can be.
void Arena::add_segments(Snapshot& snapshot) const {
  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> ranges;  // from where to where, by their beginning
  backing_->each([&](const Backing::Seen& seen) {
    const auto [begin, size, address, idle, pending, alias_of] = seen;
    if (alias_of == 0) {
      snapshot.handles.push_back({address, size});
    } else {
      snapshot.aliases.push_back({address, alias_of, size});
    }
    if (address == 0) return;
    const auto [it, is_new] = ranges.try_emplace(backing_->range_of(address), address, address + size);
    if (is_new) return;
    it->second.first = std::min(it->second.first, address);
    it->second.second = std::max(it->second.second, address + size);
  });
  for (const auto& [range, part] : ranges) snapshot.segments.push_back({part.first, part.second - part.first});
}

// Free pieces are cut at the borders of handles: each has one reason.
void Arena::add_pieces(Snapshot& snapshot) const {
  using enum Snapshot::State;
  struct Backed {
    Offset begin, end;
    std::uint64_t address;
    Snapshot::State state;
  };
  std::vector<Backed> handles;
  backing_->each([&](const Backing::Seen& seen) {
    const Snapshot::State state = !seen.idle ? kStranded : seen.pending ? kPending : kReleasable;
    if (seen.address != 0) handles.push_back({seen.begin, seen.begin + seen.size, seen.address, state});
  });
  std::sort(handles.begin(), handles.end(), [](const Backed& a, const Backed& b) { return a.begin < b.begin; });
  const auto add_free = [&](Offset from, Offset to) {
    auto it = std::partition_point(handles.begin(), handles.end(), [&](const Backed& h) { return h.end <= from; });
    for (; it != handles.end() && it->begin < to; ++it) {
      const Offset begin = std::max(from, it->begin), end = std::min(to, it->end);
      snapshot.pieces.push_back({it->address + (begin - it->begin), end - begin, it->state});
    }
  };
  gaps_.each([&](const Gap& gap) { add_free(gap.begin, gap.end); });
  blocks_.each([&](const Block& block) {  // what is left under a block that has lost its data is of no use
    if (block.lost) add_free(block.offset, block.offset + block.size);
  });
  add_captured(snapshot);
  const auto by_address = [](const auto& a, const auto& b) { return a.address < b.address; };
  std::sort(snapshot.pieces.begin(), snapshot.pieces.end(), by_address);
  add_blocks(snapshot);
}

void Arena::add_captured(Snapshot& snapshot) const {
  for (const auto& graph : graphs_) {
    for (const auto& [offset, piece] : graph->pieces()) {
      snapshot.pieces.push_back({backing_->address_of(offset), piece.size, Snapshot::State::kCaptured});
    }
  }
}

// There may be very many: they are sorted as pairs of numbers, and put among the free pieces, which are.
void Arena::add_blocks(Snapshot& snapshot) const {
  std::vector<std::pair<std::uint64_t, const Block*>> sorted;
  sorted.reserve(blocks_.size());
  blocks_.each([&](const Block& block) {
    if (block.live && !block.lost) sorted.emplace_back(block.address, &block);
  });
  std::sort(sorted.begin(), sorted.end());
  const std::vector<Snapshot::Piece> free = std::exchange(snapshot.pieces, {});
  snapshot.pieces.reserve(free.size() + sorted.size());
  auto next = free.begin();
  for (const auto& [address, block] : sorted) {
    while (next != free.end() && next->address < address) snapshot.pieces.push_back(*next++);
    const bool is_default = block->handle == cu::legacy_stream();
    const auto stream = is_default ? 0 : reinterpret_cast<std::uint64_t>(block->handle);  // as people say it
    snapshot.pieces.push_back({address, block->size, Snapshot::State::kLive, block->requested, stream, block->serial,
                               block->scope ? block->scope->path() : std::string(), block->pins > 0, block->line,
                               block->born});
  }
  snapshot.pieces.insert(snapshot.pieces.end(), next, free.end());
}

std::string Arena::why_full(Bytes rounded) const {
  const Bytes granule = backing_->granule(), reserved = backing_->reserved() * granule;
  const Granules most = limit_with(device_free()), capped = in_granules(settings_.cap);
  if (backing_->was_refused()) return settings_.headroom > 0 && most < capped ? "headroom kept" : "device full";
  const Bytes left = most * granule > reserved ? most * granule - reserved : 0;
  if (backing_->moving() > 0) return "memory is on its way";
  if (plain_ && reserved - counts().live + left >= rounded) return "fragmented";
  const std::optional<Place> place = gaps_.find(block_size(rounded));  // reserve() rounds nothing
  const Granules fixed = backing_->touched() + backing_->pinned();
  if (!plain_ && !place && fixed + backing_->span_of(0, rounded).count() <= most) return "too few addresses";
  if (backing_->pinned() > 0) {
    if (place && backing_->touched() + place->new_granules <= most) return "pinned memory kept";
  }
  if (most < capped) return settings_.headroom > 0 ? "headroom kept" : "device full";
  return settings_.cap + granule > device_.total() ? "device full" : "cap reached";
}

void Arena::fail(const Request& wanted, Lock& held, std::string verdict, Passes passes) {
  ask_device(wanted, held);
  if (verdict.empty()) verdict = why_full(wanted.rounded);
  note_peak();
  set_fronts();
  if (wanted.is_last) {
    ++failures_;
    if (observer_) tell({EventKind::kFailure, 0, wanted.size, wanted.stream, 0, wanted.line});
  }
  const Stats stats = figures(wanted.may_reback && verdict != kCapturing && verdict != kNotAllowed);
  const Bytes budget = wanted.scope ? round_down(wanted.scope->left_in_all(), kAlignment) : ~Bytes{0};
  const Bytes largest = std::min({passes.now, stats.largest, budget});
  const Bytes by_moving = std::min({passes.by_moving, stats.largest_with_moving, budget});
  const bool lacks_moving = wanted.rounded > largest && wanted.rounded <= by_moving;
  wants_moving_ |= lacks_moving && wanted.is_last;
  throw OutOfMemory("out of memory: " + format_bytes(wanted.size) + " asked, " + verdict +
                        "; the largest request that would pass is " + largest_in_words(largest, by_moving, stats),
                    verdict, wanted.size, largest,
                    {.largest = std::max(largest, by_moving), .set_free = lacks_moving ? stats.compactable : 0}, stats);
}

void Arena::validate() const {
  const Lock held = lock(When::kAlways);
  check();
}

void Arena::check() const {
  const auto demand = [](bool condition, const std::string& text) {
    if (!condition) throw Error("the arena is inconsistent: " + text);
  };
  demand(gaps_.consistent(), "the index of gaps");
  if (const auto problem = backing_->problem()) demand(false, *problem);
  const Fronts::Held held(fronts_);
  Bytes requested = 0, live = 0, others = 0, free = 0, segments = plain_ ? 0 : backing_->size();
  std::vector<std::pair<Offset, Offset>> ranges;
  blocks_.each([&](const Block& block) {
    const Span span = backing_->span_of(block.offset, block.size);
    if (!backing_->has_lost(span)) {
      demand(backing_->is_backed(span) && block.address == backing_->address_of(block.offset), "a block's address");
    }
    const bool counts = block.live && !block.lost;
    requested += counts ? block.requested : 0;
    live += counts ? block.size : 0;
    others += counts ? 0 : block.size;
    ranges.emplace_back(block.offset, block.offset + block.size);
  });
  gaps_.each([&](const Gap& gap) {
    free += gap.size();
    ranges.emplace_back(gap.begin, gap.end);
  });
  for (const auto& graph : graphs_) {
    for (const auto& [offset, piece] : graph->pieces()) {
      others += piece.size;
      ranges.emplace_back(offset, offset + piece.size);
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) demand(ranges[i - 1].second <= ranges[i].first, "pieces overlap");
  if (plain_) {
    backing_->each([&](const Backing::Seen& seen) { segments += seen.address != 0 ? seen.size : 0; });
  }
  const Sums sums = tallies_.sums();
  demand(requested == static_cast<Bytes>(sums.requested) && live == static_cast<Bytes>(sums.live),
         "the sums over all blocks differ from the running counts");
  demand(live + others + free + backing_->lent() * backing_->granule() == segments,
         "blocks and gaps do not fill the segments");
}

}  // namespace arena
