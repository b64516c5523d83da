// Allocating and freeing: first the stream's cache without the lock, then the heap with it, then the ladder.
#include "core/arena/arena.hpp"
#include "core/arena/failure.hpp"
#include "core/arena/ladder.hpp"
#include "core/arena/trimming.hpp"
#include "core/arena/waiting.hpp"
#include "core/scopes/entered.hpp"

namespace arena {

// The legacy stream is the only one that cannot be captured, and whose CUstream cannot be reused for another stream.
Lookup Arena::look_up(Bytes size, cu::Stream stream) const {
  if (stream != nullptr && stream != cu::legacy_stream()) return look_up_stream(size, stream);
  const StreamKey key{cu::legacy_stream(), 0};
  const Bytes rounded = block_size(size);
  StreamCache* cache = heap_.caches.find_legacy();
  return {
      .rounded = rounded, .key = key, .cache = cache, .bin = cache != nullptr ? cache->bin_that_has(rounded) : nullptr};
}

// A kept stream is identified by its CUstream alone. Any other may be a new one with the CUstream of an old one, so the driver is
// asked which stream it is.
Lookup Arena::look_up_stream(Bytes size, cu::Stream stream) const {
  StreamKey key = is_default(stream) ? default_key(stream) : StreamKey{stream, 0};
  StreamCache* cache = is_default(stream) ? heap_.caches.find(key) : heap_.caches.find_explicit(stream);
  if (!is_default(stream) && (cache == nullptr || !cache->serves(key))) {
    key = borrowed_key(heap_.device, stream);
    if (cache != nullptr && !cache->serves(key)) cache = nullptr;
  }
  const std::optional<std::uint64_t> capture = heap_.device.capture_of(stream);
  const Bytes rounded = block_size(size);
  return {.rounded = rounded,
          .key = key,
          .cache = cache,
          .bin = !capture && cache != nullptr ? cache->bin_that_has(rounded) : nullptr,
          .capture = capture};
}

bool Arena::is_in_scope() const { return current_scope(heap_.id) != nullptr || current_graph(heap_.id) != nullptr; }

// `bin` may be null.
inline Block* Arena::take_from_cache(StreamCache& cache, StreamCache::Bin* bin, StreamKey key, Bytes size,
                                     Bytes rounded, Line line) {
  if (bin == nullptr || (is_any_entered() && is_in_scope())) return nullptr;
  ThreadCounters* counters = heap_.tracker.find();
  return counters != nullptr ? cache.take(*bin, key, size, rounded, line, *counters) : nullptr;
}

inline bool Arena::give_to_cache(Block& block) {
  ThreadCounters* counters = heap_.tracker.find();
  return counters != nullptr && block.cache->give(block, *counters);
}

HeapRequest Arena::resolve(const Request& asked, const Lookup& lookup) {
  HeapRequest request{asked, lookup};
  if (lookup.cache != nullptr && lookup.cache->serves(lookup.key)) {
    request.index = lookup.cache->index();
  } else {
    Streams& streams = heap_.streams;
    request.index = streams.index(lookup.key);
    const StreamKey key = streams.key(request.index);
    const std::uint64_t mark = streams.next_mark(request.index);
    request.cache = &heap_.caches.of(request.index, key, mark, streams.owner(request.index));
    if (lookup.bin != nullptr) request.bin = request.cache->bin_that_has(lookup.rounded);
  }
  if (is_any_entered()) {
    request.scope = current_scope(heap_.id);
    request.graph = current_graph(heap_.id);
  }
  if (lookup.key.stream != cu::legacy_stream()) note_capture(request);
  // Cached blocks have neither a scope nor a graph, and are ready for their own stream only.
  if (request.scope || request.graph || request.any_stream) request.bin = nullptr;
  return request;
}

Block& Arena::allocate(const Request& request) {
  check_process();
  const Lookup lookup = look_up(request.size, request.stream);
  if (!request.any_stream && lookup.cache != nullptr) {
    Block* block = take_from_cache(*lookup.cache, lookup.bin, lookup.key, request.size, lookup.rounded, request.line);
    if (block != nullptr) return *block;
  }
  return allocate_with_lock(request, lookup);
}

Block& Arena::allocate_with_lock(const Request& asked, const Lookup& lookup) {
  Lock held = lock();
  if (heap_.watch) sample_before(heap_, Watch::Trend::kRising);
  if (heap_.streams.too_many()) drop_idle_streams(held);
  const HeapRequest request = resolve(asked, lookup);
  if (request.scope) check_budget(heap_, request, held);
  if (request.graph) {
    if (Block* block = heap_.take_from_graph(request)) return *block;
  }
  if (!request.capture) {
    if (Block* block = heap_.take(request)) return *block;
  }
  const Streams::ActiveCall active(heap_.streams, request.index);
  Block& block = Ladder(heap_, request, held).climb();
  // Memory that could not be released when the cap was lowered may be idle now.
  if (heap_.is_over_limit()) ignore_errors([&] { trim_over_limit(heap_, held); });
  heap_.emit_reserved();
  heap_.update_cache_policy();
  return block;
}

// A stream without a cache takes the slow path, where its owner may be kept. For the legacy stream, nothing is kept in memory: that
// takes a good part of a hit.
Block* Arena::try_allocate(Bytes size, cu::Stream stream, Line line) {
  if (is_inherited()) return nullptr;
  if (stream != nullptr && stream != cu::legacy_stream()) return try_allocate_on(stream, size, line);
  StreamCache* cache = heap_.caches.find_legacy();
  if (cache == nullptr) return nullptr;
  const Bytes rounded = block_size(size);
  StreamCache::Bin* bin = cache->bin_that_has(rounded);
  const StreamKey key{cu::legacy_stream(), 0};
  if (Block* block = take_from_cache(*cache, bin, key, size, rounded, line)) return block;
  return try_allocate_with_lock({.size = size, .stream = stream, .line = line},
                                {.rounded = rounded, .key = key, .cache = cache, .bin = bin});
}

Block* Arena::try_allocate_on(cu::Stream stream, Bytes size, Line line) {
  const Lookup lookup = look_up_stream(size, stream);
  if (lookup.cache == nullptr) return nullptr;
  Block* block = take_from_cache(*lookup.cache, lookup.bin, lookup.key, size, lookup.rounded, line);
  return block != nullptr ? block : try_allocate_with_lock({.size = size, .stream = stream, .line = line}, lookup);
}

// Because its owner is kept, the CUstream is known to be the same stream.
Block* Arena::try_allocate(Bytes size, cu::Stream stream, const void* owner, Line line) {
  if (is_inherited()) return nullptr;
  const StreamCache* cache = heap_.caches.find({stream, 0});
  if (cache == nullptr || !cache->is_owned_by(owner)) return nullptr;
  const Lookup lookup = look_up(size, stream);
  if (lookup.cache != cache) return nullptr;
  Block* block = take_from_cache(*lookup.cache, lookup.bin, lookup.key, size, lookup.rounded, line);
  return block != nullptr ? block : try_allocate_with_lock({.size = size, .stream = stream, .line = line}, lookup);
}

Block* Arena::try_allocate_with_lock(const Request& asked, const Lookup& lookup) {
  const Lock held(mutex_, std::try_to_lock);
  if (!held || lookup.capture || heap_.is_over_limit() || heap_.streams.too_many()) return nullptr;
  if (!lookup.cache->serves(lookup.key)) return nullptr;  // the stream was dropped since it was looked up
  if (heap_.watch) sample_before(heap_, Watch::Trend::kRising);
  const HeapRequest request = resolve(asked, lookup);
  if (request.scope && request.scope->exceeded_by(request.rounded) != nullptr) return nullptr;
  if (request.graph) {
    if (Block* block = heap_.take_from_graph(request)) return block;
  }
  return heap_.take(request);
}

// In a forked child this does nothing: the memory is the parent's.
void Arena::free(Block& block) {
  if (!is_inherited() && !give_to_cache(block)) free_with_lock(block);
}

void Arena::free_with_lock(Block& block) {
  Lock held = lock(When::kAlways);
  give(block, held);
}

void Arena::free(std::uint64_t address) {
  if (is_inherited()) return;
  Lock held = lock(When::kAlways);
  give(block_at(address), held);
}

// Older drivers cannot say when all streams have passed. Then this waits for them, as cuMemFree does; otherwise every
// request would take new memory.
void Arena::give(Block& block, Lock& held) {
  const bool waits = waits_when_freed(block);
  heap_.give(block);
  if (waits) wait_for_device(heap_, held);
  if (heap_.is_over_limit()) trim_over_limit(heap_, held);
}

bool Arena::waits_when_freed(const Block& block) const {
  return heap_.is_used_by_all(block) && !heap_.device.can_record_context();
}

bool Arena::try_free(Block& block) { return is_inherited() || give_to_cache(block) || try_free_with_lock(block); }

bool Arena::try_free_with_lock(Block& block) {
  const Lock held(mutex_, std::try_to_lock);
  if (!held || heap_.is_over_limit() || waits_when_freed(block)) return false;
  heap_.give(block);
  return true;
}

}  // namespace arena
