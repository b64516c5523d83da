#include "core/heap/heap.hpp"

#include <algorithm>
#include <utility>

#include "core/backing/plain.hpp"
#include "core/backing/stitched.hpp"

namespace arena {
namespace {

constexpr std::uint64_t kSerials = 4096;  // that a cache gets at a time
constexpr int kRecordsForWait = 64;       // events on free that one wait justifies
constexpr int kMostRecords = 4096;

// Plain memory from the device itself.
PlainSource from_device(const Device& device) {
  return [&device](Bytes size) -> std::optional<PlainMemory> {
    const std::optional<std::uint64_t> address = device.allocate(size);
    if (!address) return std::nullopt;
    return PlainMemory{*address, [&device, address = *address] { device.deallocate(address); }};
  };
}

}  // namespace

Heap::Heap(std::shared_ptr<const Driver> driver, int number, ArenaSettings its_settings, std::uint64_t its_id)
    : id(its_id),
      device(std::move(driver), number),
      settings(std::move(its_settings)),
      plan(plan_backing()),
      is_plain(plan.is_plain),
      moves(settings.moves),
      streams(device, {[this](StreamIndex stream) { caches.forget(stream); },
                       [this](StreamIndex stream, std::uint64_t mark) { caches.set_mark(stream, mark); }}),
      gaps(is_plain ? Plain::kUnit : device.granule(), [this](Mark mark) { return streams.reached(mark); }),
      backing(make_backing()) {}

BackingPlan Heap::plan_backing() const {
  if (settings.upstream || !settings.virtual_memory) return {.is_plain = true};
  const RelaxedCapture relaxed(device);
  return arena::plan_backing(device, settings.cap, settings.peers);
}

std::unique_ptr<Backing> Heap::make_backing() {
  const Bytes granule = plan.is_plain ? Plain::kUnit : device.granule();
  const Granules growth = std::max<Granules>(1, settings.growth / granule);
  if (!plan.is_plain) return std::make_unique<Stitched>(device, streams, gaps, growth, plan, moves);
  PlainSource source = settings.upstream ? settings.upstream : from_device(device);
  return std::make_unique<Plain>(device, streams, gaps, growth, std::move(source));
}

bool Heap::fall_back(const DriverError& error, Lock& lock) {
  if (backing->is_proven() || error.code() != static_cast<int>(cu::Result::kNotSupported)) return false;
  plan = plain_because(error.call() + " is not supported here");
  std::unique_ptr<Backing> plain = make_backing();
  plain->note_earlier_peak(backing->peak() * backing->granule());
  backing.reset();
  std::destroy_at(&gaps);
  std::construct_at(&gaps, Plain::kUnit, [this](Mark mark) { return streams.reached(mark); });
  backing = std::move(plain);
  is_plain = true;
  const Granules kept = limits.in_granules(round_up(settings.reserve, Plain::kUnit));
  ignore_errors([&] { backing->reserve(kept, [this] { return limits.limit(); }, lock); });
  return true;
}

bool Heap::must_wait(const HeapRequest& request, Offset offset) const {
  return backing->must_wait(request.user(), backing->span_of(offset, request.rounded), gaps.marks_at(offset));
}

std::optional<Place> Heap::best_place(Bytes rounded) const {
  const std::optional<Place> place = gaps.find(rounded);
  if (!place || place->new_granules == 0 || !is_scarce(rounded)) return place;
  return backing->best_place(rounded, *place);
}

bool Heap::is_scarce(Bytes rounded) const {
  return backing->is_scarce(rounded, cap()) && !moves.load(std::memory_order_relaxed);
}

bool Heap::is_wasteful(const Place& place, Span span) const {
  if (place.new_granules == 0 || moves.load(std::memory_order_relaxed)) return false;
  return backing->is_wasteful(span, cap());
}

std::optional<Place> Heap::find_hit(const HeapRequest& request) const {
  std::optional<Place> place = gaps.find(request.rounded);
  if (!place) return std::nullopt;
  const bool may_do_better = place->new_granules > 0 && is_scarce(request.rounded);
  if (may_do_better) place = backing->best_place(request.rounded, *place);
  const Span span = backing->span_of(place->offset, request.rounded);
  if (!backing->is_backed(span)) return std::nullopt;
  if (may_do_better && is_wasteful(*place, span)) return std::nullopt;
  if (backing->must_wait(request.user(), span, gaps.marks_of(*place))) return std::nullopt;
  return place;
}

// Caches are flushed before a new granule is touched. While there is much room, small blocks stay cached until the
// driver must be asked for more.
Block* Heap::take(const HeapRequest& request) {
  Block* block = take_cached(request);
  if (block == nullptr) {
    std::optional<Place> place = find_hit(request);
    const StreamCache::Which which = place && has_much_room_ ? StreamCache::Which::kLarge : StreamCache::Which::kAll;
    if ((!place || place->new_granules > 0) && flush_caches(which)) place = find_hit(request);
    if (!place) return nullptr;
    if (!gaps.take(*place, request.rounded)) ++splits;
    block = &new_block(place->offset, request);
  }
  ++hits;
  return block;
}

Block& Heap::take_at(Offset offset, const HeapRequest& request) {
  if (!gaps.take(offset, request.rounded)) ++splits;
  return new_block(offset, request);
}

Block* Heap::take_from_graph(const HeapRequest& request) {
  const std::optional<GraphMemory::Taken> taken =
      request.graph->take(request.rounded, {request.index, request.capture.value_or(0)});
  if (!taken) return nullptr;
  ++hits;
  return &new_block(taken->offset, request, taken->chunk);
}

Block* Heap::take_from_graph_at(const HeapRequest& request, Offset offset, std::uint64_t capture) {
  const std::optional<GraphMemory::Taken> taken = request.graph->take_at(offset, request.rounded);
  if (!taken) return nullptr;
  Block& block = new_block(taken->offset, request, taken->chunk);
  block.capture = capture;
  return &block;
}

void Heap::take_over(GraphMemory& from, const std::shared_ptr<GraphMemory>& to) {
  const auto it = std::ranges::find_if(graphs, [&](const auto& other) { return other.get() == &from; });
  if (it == graphs.end()) return;
  const std::shared_ptr<GraphMemory> kept = *it;
  graphs.erase(it);
  to->take_over(from);
  blocks.each([&](Block& block) {
    if (block.graph == kept) block.graph = to;
  });
  check_if_validating();
}

Block& Heap::new_block(Offset offset, const HeapRequest& request, Offset chunk) {
  if (chunk == kNoChunk) backing->touch(backing->span_of(offset, request.rounded));
  Block& block = blocks.add(backing->address_of(offset));
  block.offset = offset;
  block.size = request.rounded;
  block.stream = request.index;
  block.cu_stream = streams.stream(request.index);
  block.cache = request.cache;
  block.cacheable = !request.scope && !request.graph && !request.any_stream;
  if (request.any_stream) block.others.push_back(Streams::kAllStreams);
  if (request.scope) {
    block.scope = request.scope;
    request.scope->add(request.rounded);
  }
  if (request.graph) add_to_graph(block, request, chunk);
  start(block, request, Origin::kNew);
  return block;
}

// Makes a block live.
void Heap::start(Block& block, const HeapRequest& request, Origin origin) {
  StreamCache& cache = *request.cache;
  ThreadCounters& counters = tracker.of_this_thread();
  Block* evicted = nullptr;
  const auto begin = [&] {
    if (origin == Origin::kNew && block.cacheable) evicted = cache.miss(request.rounded);
    cache.start(block, request.size, caches.next_serial(cache, events.is_on() ? 1 : kSerials), request.line);
  };
  {
    const StreamCaches::Guard held(caches, cache);
    if (counters.has_room(request.size, request.rounded)) {
      counters.add(request.size, request.rounded);
      begin();
    }
  }
  if (!block.live) {
    const StreamCaches::AllLocked held(caches);
    tracker.add(counters, request.size, request.rounded);
    begin();
  }
  while (evicted != nullptr) return_to_gaps(*std::exchange(evicted, evicted->next));
  note_peak();
  if (watch) watch->note_change(Watch::Trend::kRising);
  if (events.is_on()) {
    events.emit({.kind = EventKind::kAllocate,
                 .block = block.serial,
                 .size = request.size,
                 .stream = request.index,
                 .line = request.line});
  }
  check_if_validating();
}

// If the block is not in a chunk of the graph yet, its place becomes a new chunk. If the graph was released since the
// request was made, the block becomes an ordinary one.
void Heap::add_to_graph(Block& block, const HeapRequest& request, Offset chunk) {
  if (std::find(graphs.begin(), graphs.end(), request.graph) == graphs.end()) {
    block.others.push_back(Streams::kAllStreams);
    return;
  }
  block.graph = request.graph;
  block.capture = request.capture.value_or(0);
  block.chunk = chunk == kNoChunk ? block.offset : chunk;
  if (chunk != kNoChunk) return;
  request.graph->add({block.offset, block.size});
  backing->pin(backing->span_of(block.offset, block.size));
}

void Heap::give(Block& block) {
  const std::uint64_t serial = events.is_on() ? block.serial : 0;
  if (watch) sample_before(*this, Watch::Trend::kFalling);
  block.live = false;
  block.mark = 0;
  if (!block.lost) tracker.of_this_thread().remove(block.requested, block.size);
  if (!try_cache(block)) return_to_gaps(block);
  if (events.is_on()) events.emit({.kind = EventKind::kFree, .block = serial});
  if (watch) watch->note_change(Watch::Trend::kFalling);
  check_if_validating();
}

void Heap::return_to_gaps(Block& block) {
  if (!block.cacheable) {
    return_uncacheable(block);
  } else {
    const bool was_cached = block.mark != 0;  // then an event now would be too late
    const Marks marks(mark_of(block));
    if (block.size > room_left_ && !was_cached) record_contended(marks);
    add_gap(block, marks);
  }
  blocks.remove(block);
}

// Memory of a graph that other streams used, too, has no order in the graph, so it is given back under kAllStreams,
// which no request uses.
void Heap::return_uncacheable(Block& block) {
  if (block.pins > 0) backing->unpin(backing->span_of(block.offset, block.size));
  if (block.scope) block.scope->remove(block.size);
  if (block.graph) {
    const StreamIndex stream = block.others.empty() ? block.stream : Streams::kAllStreams;
    block.graph->give(block.offset, block.size, {stream, block.capture}, block.chunk);
    return;
  }
  if (is_used_by_all(block)) {
    const Mark mark = streams.mark(Streams::kAllStreams);
    record_at_once(mark);
    add_gap(block, Marks(mark));
    return;
  }
  Marks marks(mark_of(block));
  for (const StreamIndex other : block.others) marks.add(streams.mark(other));
  if (block.size > room_left_) record_contended(marks);
  add_gap(block, marks);
}

void Heap::add_gap(const Block& block, const Marks& marks) {
  backing->untouch(backing->span_of(block.offset, block.size), marks);
  gaps.add({block.offset, block.offset + block.size}, marks);
}

// The point in its stream at which the block was freed.
Mark Heap::mark_of(Block& block) {
  if (block.mark == 0) {
    block.mark = streams.mark(block.stream).number;
  } else {
    streams.raise({block.stream, block.mark});
  }
  return {block.stream, block.mark};
}

// There is not enough new memory to replace this block, so another stream may have to wait for it. Then an event right
// after the free is worth its cost, if there is another stream and the event can be recorded in the block's own stream.
// Events of whole contexts cost more and disturb captures, so they are recorded only while waits make use of them.
void Heap::record_contended(const Marks& marks) {
  const bool has_others = streams.count() > 1;
  for (const Mark mark : marks) {
    if (!has_others || !streams.can_record_in(mark.stream)) {
      if (records_left_ == 0) continue;
      --records_left_;
    }
    record_at_once(mark);
  }
}

void Heap::record_at_once(Mark mark) {
  ignore_errors([&] {
    const RelaxedCapture relaxed(device);
    streams.record_now(mark);
  });
}

void Heap::allow_more_records() { records_left_ = std::min(records_left_ + kRecordsForWait, kMostRecords); }

// A launch may be running in any stream, hence kAllStreams.
bool Heap::release(GraphMemory& graph) {
  const auto is_it = [&](const auto& other) { return other.get() == &graph; };
  const auto it = std::find_if(graphs.begin(), graphs.end(), is_it);
  if (it == graphs.end()) return false;
  const std::shared_ptr<GraphMemory> kept = *it;
  graphs.erase(it);
  const Marks marks(streams.mark(Streams::kAllStreams));
  blocks.each([&](Block& block) {
    if (block.graph.get() != &graph) return;
    backing->touch(backing->span_of(block.offset, block.size));
    block.graph = nullptr;
    block.others.push_back(Streams::kAllStreams);
  });
  for (const GraphMemory::Chunk& chunk : graph.chunks()) {
    const Span span = backing->span_of(chunk.offset, chunk.size);
    backing->unpin(span);
    backing->untouch(span, marks);
  }
  for (const auto& [offset, piece] : graph.pieces()) gaps.add({offset, offset + piece.size}, marks);
  graph.clear();
  update_cache_policy();
  check_if_validating();
  return true;
}

// Blocks that other threads are freeing at this moment are already counted. The caches are emptied so that none of
// these blocks is reused.
void Heap::drop_lost_blocks() {
  const StreamCaches::AllLocked held(caches);
  caches.each([&](StreamCache& cache) {
    cache.pop_all(StreamCache::Which::kAll, [&](Block& block) { return_to_gaps(block); });
  });
  blocks.each([&](Block& block) {
    if (block.lost || !backing->has_lost(backing->span_of(block.offset, block.size))) return;
    block.lost = true;
    block.cacheable = false;
    tracker.of_this_thread().remove(block.requested, block.size);
  });
}

void Heap::set_peak() { peak = {stats_of(*this, Moving::kAllowed), backing->largest_free()}; }

Highest Heap::highest() const {
  return {.live = std::max(highest_before_restart_.live, static_cast<Bytes>(tracker.peak().live)),
          .reserved = std::max(highest_before_restart_.reserved, backing->peak() * backing->granule())};
}

void Heap::restart_peaks() {
  highest_before_restart_ = highest();
  {
    const StreamCaches::AllLocked held(caches);
    tracker.restart_peak();
  }
  backing->restart_peak();
  set_peak();
}

void Heap::emit_reserved() {
  if (watch) sample_reserved(*this);
  events.emit_reserved(reserved());
}

}  // namespace arena
