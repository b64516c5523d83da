// The stream caches of the heap: what goes into them, when they are flushed, and what they may keep.
#include <algorithm>

#include "core/heap/heap.hpp"

namespace arena {
namespace {

constexpr Bytes kMuchRoom = 8;  // there is much room while at most 1/8 of the cap is reserved

}  // namespace

Block* Heap::take_cached(const HeapRequest& request) {
  if (request.bin == nullptr) return nullptr;
  Block* block = nullptr;
  {
    const StreamCaches::Guard held(caches, *request.cache);
    block = request.cache->pop(*request.bin, request.rounded);
  }
  if (block != nullptr) start(*block, request, Origin::kCached);
  return block;
}

bool Heap::try_cache(Block& block) {
  StreamCache& cache = *block.cache;
  StreamCache::Bin* bin = cache.bin_that_wants(block.size);
  if (bin == nullptr) return false;
  const auto push = [&] {
    const StreamCaches::Guard held(caches, cache);
    return cache.would_admit(block) ? cache.push(*bin, block) : StreamCache::Push::kRefused;
  };
  StreamCache::Push pushed = push();
  if (pushed == StreamCache::Push::kFull && flush_cache(cache)) pushed = push();
  return pushed == StreamCache::Push::kCached;
}

void Heap::make_uncacheable(Block& block) {
  const StreamCaches::Guard held(caches, *block.cache);
  block.cacheable = false;
}

bool Heap::flush_cache(StreamCache& cache, StreamCache::Which which) {
  const StreamCaches::Guard held(caches, cache);
  if (cache.is_empty() || (which == StreamCache::Which::kLarge && !cache.has_large())) return false;
  cache.pop_all(which, [&](Block& block) { return_to_gaps(block); });
  return true;
}

bool Heap::flush_caches(StreamCache::Which which) {
  bool any = false;
  caches.each([&](StreamCache& cache) { any |= flush_cache(cache, which); });
  return any;
}

void Heap::flush_for_inspection() {
  if (is_flushed) return;
  is_flushed = true;
  update_cache_policy();
  caches.each([&](StreamCache& cache) {
    cache.each_block([&](Block& block) {
      const Offset end = block.offset + block.size;
      const Span span = backing->span_of(block.offset, block.size);
      const Marks marks(mark_of(block));
      flushed_.push_back({&block, gaps.adjacent_to(block.offset, end), backing->save_marks(span)});
      backing->untouch(span, marks);
      gaps.add({block.offset, end}, marks);
    });
  });
}

void Heap::restore_after_inspection() {
  if (!is_flushed) return;
  for (; !flushed_.empty(); flushed_.pop_back()) {
    const auto& [block, adjacent, marks] = flushed_.back();
    gaps.undo_add(block->offset, adjacent);
    backing->touch_and_restore(backing->span_of(block->offset, block->size), marks);
  }
  is_flushed = false;
  update_cache_policy();
}

// Large blocks are cached only while there is much room: near the cap, the best place for each block matters more.
void Heap::update_cache_policy() {
  using enum StreamCache::Admits;
  const bool is_direct = !events.is_on() && !watch && !settings.validates && !is_over_limit() && !is_flushed;
  if (backing->was_refused()) {
    full_at_ = reserved();
  } else if (reserved() > full_at_) {
    full_at_ = ~Bytes{0};
  }
  const Bytes most = std::min(settings.cap, full_at_);
  room_left_ = most - std::min(most, reserved());
  has_much_room_ = kMuchRoom * reserved() <= most;
  const StreamCache::Admits admits = is_over_limit() ? kNone : has_much_room_ ? kAll : kSmall;
  caches.set_policy(is_direct ? StreamCache::Access::kDirect : StreamCache::Access::kLocked, admits);
}

}  // namespace arena
