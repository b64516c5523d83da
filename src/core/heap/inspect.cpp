#include "core/heap/inspect.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/heap/heap.hpp"

namespace arena {
namespace {

void add_counts(const Heap& heap, Stats& s) {
  const StreamCaches::AllLocked held(heap.caches);
  const Sums sums = heap.tracker.sums();
  s.requested = static_cast<Bytes>(sums.requested);
  s.live = static_cast<Bytes>(sums.live);
  s.blocks = static_cast<std::uint64_t>(sums.blocks);
  s.hits = heap.hits;
  heap.caches.each([&](const StreamCache& cache) {
    s.allocations += cache.allocations();
    s.hits += cache.hits();
  });
}

// A segment is the mapped part of an address range: the rest is huge and empty.
void add_segments(const Heap& heap, Snapshot& snapshot) {
  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> ranges;  // [first, last) by the start of the range
  heap.backing->each([&](const Backing::MappingInfo& info) {
    if (info.alias_of == 0) {
      snapshot.handles.push_back({info.address, info.size});
    } else {
      snapshot.aliases.push_back({info.address, info.alias_of, info.size});
    }
    if (info.address == 0) return;
    const std::uint64_t end = info.address + info.size;
    const auto [it, is_new] = ranges.try_emplace(heap.backing->range_of(info.address), info.address, end);
    if (is_new) return;
    it->second.first = std::min(it->second.first, info.address);
    it->second.second = std::max(it->second.second, end);
  });
  for (const auto& [range, part] : ranges) snapshot.segments.push_back({part.first, part.second - part.first});
}

void add_captured(const Heap& heap, Snapshot& snapshot) {
  for (const auto& graph : heap.graphs) {
    for (const auto& [offset, piece] : graph->pieces()) {
      snapshot.pieces.push_back({heap.backing->address_of(offset), piece.size, Snapshot::State::kCaptured});
    }
  }
}

// There may be very many blocks: they are sorted as small pairs, and merged into the free pieces, which are sorted.
void add_blocks(const Heap& heap, Snapshot& snapshot) {
  std::vector<std::pair<std::uint64_t, const Block*>> sorted;
  sorted.reserve(heap.blocks.size());
  heap.blocks.each([&](const Block& block) {
    if (block.live && !block.lost) sorted.emplace_back(block.address, &block);
  });
  std::sort(sorted.begin(), sorted.end());
  const std::vector<Snapshot::Piece> free = std::exchange(snapshot.pieces, {});
  snapshot.pieces.reserve(free.size() + sorted.size());
  auto next = free.begin();
  for (const auto& [address, block] : sorted) {
    while (next != free.end() && next->address < address) snapshot.pieces.push_back(*next++);
    const bool is_default = block->cu_stream == cu::legacy_stream();
    const auto stream = is_default ? 0 : reinterpret_cast<std::uint64_t>(block->cu_stream);  // as CuPy and PyTorch do
    snapshot.pieces.push_back({.address = address,
                               .size = block->size,
                               .state = Snapshot::State::kLive,
                               .requested = block->requested,
                               .stream = stream,
                               .serial = block->serial,
                               .scope = block->scope ? block->scope->path() : std::string(),
                               .pinned = block->pins > 0,
                               .line = block->line,
                               .born = block->born});
  }
  snapshot.pieces.insert(snapshot.pieces.end(), next, free.end());
}

// Free pieces are split at handle boundaries, so that each has one state.
void add_pieces(const Heap& heap, Snapshot& snapshot) {
  using enum Snapshot::State;
  struct Backed {
    Offset begin, end;
    std::uint64_t address;
    Snapshot::State state;
  };
  std::vector<Backed> handles;
  heap.backing->each([&](const Backing::MappingInfo& info) {
    const Snapshot::State state = !info.idle ? kStranded : info.pending ? kPending : kReleasable;
    if (info.address == 0) return;
    handles.push_back({.begin = info.begin, .end = info.begin + info.size, .address = info.address, .state = state});
  });
  std::sort(handles.begin(), handles.end(), [](const Backed& a, const Backed& b) { return a.begin < b.begin; });
  const auto add_free = [&](Offset from, Offset to) {
    auto it = std::partition_point(handles.begin(), handles.end(), [&](const Backed& h) { return h.end <= from; });
    for (; it != handles.end() && it->begin < to; ++it) {
      const Offset begin = std::max(from, it->begin), end = std::min(to, it->end);
      snapshot.pieces.push_back({it->address + (begin - it->begin), end - begin, it->state});
    }
  };
  heap.gaps.each([&](const Gap& gap) { add_free(gap.begin, gap.end); });
  heap.blocks.each([&](const Block& block) {  // memory under a block that lost its data is free, but of no use
    if (block.lost) add_free(block.offset, block.offset + block.size);
  });
  add_captured(heap, snapshot);
  const auto by_address = [](const auto& a, const auto& b) { return a.address < b.address; };
  std::sort(snapshot.pieces.begin(), snapshot.pieces.end(), by_address);
  add_blocks(heap, snapshot);
}

}  // namespace

Stats running_counts(const Heap& heap) {
  const Bytes granule = heap.backing->granule();
  Stats s;
  add_counts(heap, s);
  s.reserved = heap.backing->reserved() * granule;
  s.rounding = s.live - s.requested;
  s.pending = heap.backing->pending() * granule;
  for (const auto& graph : heap.graphs) s.captured += graph->free_bytes();
  s.releasable = heap.backing->idle() * granule - s.pending;
  s.spare = heap.backing->spare() * granule;
  s.stranded = s.reserved - s.live - s.pending - s.captured - s.releasable - s.spare;
  s.compactable = heap.backing->compactable() * granule;
  s.cap = heap.settings.cap;
  s.headroom = heap.settings.headroom;
  s.device_total = heap.device.total();
  s.peak_requested = static_cast<Bytes>(heap.tracker.peak().requested);
  s.peak_live = static_cast<Bytes>(heap.tracker.peak().live);
  s.peak_reserved = heap.backing->peak() * granule;
  s.splits = heap.splits;
  s.failures = heap.failures;
  s.maps = heap.backing->maps();
  s.unmaps = heap.backing->unmaps();
  s.rebacked = heap.backing->rebacked();
  s.driver_calls = heap.device.calls();
  s.waits = heap.streams.waits();
  return s;
}

Stats stats_of(const Heap& heap, Moving moving) {
  Stats s = running_counts(heap);
  s.device_free = heap.limits.device_free();
  const Granules most = heap.limits.reachable_with(s.device_free);
  s.largest_without_moving = s.largest_with_moving = heap.backing->largest(most, Moving::kForbidden);
  if (s.compactable > 0) s.largest_with_moving = heap.backing->largest(most, Moving::kAllowed);
  s.largest = moving == Moving::kAllowed ? s.largest_with_moving : s.largest_without_moving;
  return s;
}

// A driver error must neither prevent an inspection nor hide the error of a failed request.
Inspection::Inspection(Heap& heap) {
  heap.flush_for_inspection();
  ignore_errors([&] {
    if (heap.streams.any_capturing()) return;
    const RelaxedCapture relaxed(heap.device);
    heap.streams.ensure_events(heap.backing->pending_marks(), EventScope::kStreams);
    poll_.emplace(*heap.backing);
  });
}

Snapshot take_snapshot(Heap& heap, Moving moving) {
  Snapshot snapshot;
  snapshot.stats = stats_of(heap, moving);
  snapshot.next_serial = heap.caches.begin_serials();
  snapshot.largest_free = heap.backing->largest_free();
  snapshot.peak = heap.peak;
  snapshot.granule = heap.backing->granule();
  snapshot.plain = heap.is_plain;
  snapshot.addresses = heap.is_plain ? 0 : heap.backing->size();
  snapshot.peers = heap.backing->kind().peers;
  snapshot.remark = heap.plan.remark;
  add_segments(heap, snapshot);
  add_pieces(heap, snapshot);
  return snapshot;
}

void check(const Heap& heap) {
  const auto demand = [](bool condition, const std::string& text) {
    if (!condition) throw Error("the arena is inconsistent: " + text);
  };
  demand(heap.gaps.consistent(), "the tree of gaps is broken");
  if (const auto problem = heap.backing->problem()) demand(false, *problem);
  const StreamCaches::AllLocked held(heap.caches);
  Bytes requested = 0, live = 0, others = 0, free = 0, segments = heap.is_plain ? 0 : heap.backing->size();
  std::vector<std::pair<Offset, Offset>> ranges;
  heap.blocks.each([&](const Block& block) {
    const Span span = heap.backing->span_of(block.offset, block.size);
    if (!heap.backing->has_lost(span)) {
      demand(heap.backing->is_backed(span) && block.address == heap.backing->address_of(block.offset),
             "a block's address is wrong, or it is not backed");
    }
    const bool counts = block.live && !block.lost;
    requested += counts ? block.requested : 0;
    live += counts ? block.size : 0;
    others += counts ? 0 : block.size;
    ranges.emplace_back(block.offset, block.offset + block.size);
  });
  heap.gaps.each([&](const Gap& gap) {
    free += gap.size();
    ranges.emplace_back(gap.begin, gap.end);
  });
  for (const auto& graph : heap.graphs) {
    for (const auto& [offset, piece] : graph->pieces()) {
      others += piece.size;
      ranges.emplace_back(offset, offset + piece.size);
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) demand(ranges[i - 1].second <= ranges[i].first, "pieces overlap");
  if (heap.is_plain) {
    heap.backing->each([&](const Backing::MappingInfo& info) { segments += info.address != 0 ? info.size : 0; });
  }
  const Sums sums = heap.tracker.sums();
  demand(requested == static_cast<Bytes>(sums.requested) && live == static_cast<Bytes>(sums.live),
         "the sums over all blocks differ from the running totals");
  demand(live + others + free + heap.backing->inactive() * heap.backing->granule() == segments,
         "blocks and gaps do not fill the segments");
}

}  // namespace arena
