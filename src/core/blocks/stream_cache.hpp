// The fast path: a freed block stays in the cache of its stream, and the next request of exactly its size gets it
// again. That takes only the cache's own lock:
//
//   - The stream is the same, so there is nothing to wait for.
//   - The block stays where it is, so no granule is touched, the driver is not called, and the cap is not affected.
//   - Each thread has its own counters of live memory (thread_counters.hpp).
//
// A cached block is free memory. The arena flushes caches before it asks the driver for more, and before it touches a
// new granule if blocks are large or the cap is near. Inspection flushes them, too, and restores them afterwards, so
// that it does not change which memory later requests get.
//
// Lock order: the arena's lock, then caches' locks by stream index.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/blocks/blocks.hpp"
#include "core/blocks/thread_counters.hpp"
#include "core/locks.hpp"
#include "core/streams/streams.hpp"
#include "core/types.hpp"

namespace arena {

// It learns which sizes recur: a bin has a size and a score, which says how often the size was requested recently. The
// first freed block of a size is not cached, and sizes that never recur cost next to nothing.
class alignas(64) StreamCache {
 public:
  // Which freed blocks it accepts.
  enum class Admits : std::uint8_t { kNone, kSmall, kAll };
  // Whether it may be used without the arena's lock.
  enum class Access : std::uint8_t { kLocked, kDirect };
  static constexpr Bytes kSmall = Bytes{64} << 10;

  // The blocks of one size.
  struct Bin {
    RelaxedAtomic<Bytes> size{0};
    RelaxedAtomic<Block*> first{nullptr};
    RelaxedAtomic<std::uint32_t> score{0};  // how often it was requested recently, up to kHighestScore
  };

  // These do not need the arena's lock. If they return null or false, try again with it.
  Block* take(Bin& bin, StreamKey stream, Bytes size, Bytes rounded, Line line, ThreadCounters& counters);
  bool give(Block& block, ThreadCounters& counters);
  // Hints whether it is worth trying; null if not. Need no lock.
  Bin* bin_that_has(Bytes rounded) {
    Bin* bin = find(rounded);
    return bin != nullptr && bin->first != nullptr ? bin : nullptr;
  }
  Bin* bin_that_wants(Bytes rounded) {
    Bin* bin = find(rounded);
    return bin != nullptr && bin->score > 0 ? bin : nullptr;
  }

  // The rest needs the arena's lock and this cache's.
  explicit StreamCache(StreamIndex index) : index_(index) {}
  SpinLock& lock() { return lock_; }
  StreamIndex index() const { return index_; }
  StreamKey key() const { return {stream_, tag_}; }  // likewise
  bool serves(StreamKey stream) const {              // as a hint, also without a lock
    return stream_ == stream.stream && tag_ == stream.tag;
  }
  // Whether the arena keeps the stream through this owner. Also works without a lock: a live owner that was just kept
  // still has the same stream.
  bool is_owned_by(const void* owner) const { return owner_ == owner; }
  // Serves another stream from now on; none if the key is empty.
  void serve(StreamKey stream, const void* owner = nullptr);
  // The mark of blocks that are cached from now on. Set it before recording an event that covers lower marks: a block
  // that another thread frees at that moment then either has the higher mark or is covered by the event.
  void set_mark(std::uint64_t number) { mark_.store(number); }
  void set_policy(Access access, Admits admits) {
    direct_ = access == Access::kDirect;
    admits_ = admits;
  }
  bool would_admit(Bytes rounded) const {
    return admits_ == Admits::kAll || (admits_ == Admits::kSmall && rounded <= kSmall);
  }
  bool would_admit(const Block& block) const {
    return block.cacheable && stream_ != nullptr && would_admit(block.size);
  }

  // Null if the bin has no block of that size now.
  Block* pop(Bin& bin, Bytes rounded) {
    Block* block = bin.first;
    if (block == nullptr || bin.size != rounded) return nullptr;
    bin.first = block->next;
    if (bin.score < kHighestScore) bin.score = bin.score + 1;
    count(*block, -1);
    return block;
  }
  // Notes a miss for this size. Returns a list of evicted blocks, or null.
  Block* miss(Bytes rounded);
  enum class Push { kCached, kFull, kRefused };
  Push push(Bin& bin, Block& block) {  // requires would_admit(block)
    if (bin.size != block.size || bin.score == 0) return Push::kRefused;
    if (size_ == kMost) return Push::kFull;
    block.mark = mark_.load(std::memory_order_acquire);
    block.next = bin.first;
    bin.first = &block;
    count(block, 1);
    return Push::kCached;
  }
  bool is_empty() const { return size_ == 0; }
  bool has_large() const { return large_ > 0; }
  // Pops all blocks, or the large ones, and halves the scores of their sizes, because no request used them.
  enum class Which { kAll, kLarge };
  template <typename Visit>
  void pop_all(Which which, Visit visit) {
    for (Bin& bin : bins_) {
      if (bin.first == nullptr || (which == Which::kLarge && bin.size <= kSmall)) continue;
      bin.score = bin.score / 2;
      for (Block* block = drop(bin); block != nullptr;) visit(*std::exchange(block, block->next));
    }
  }
  template <typename Visit>
  void each_block(Visit visit) const {
    for (const Bin& bin : bins_) {
      for (Block* block = bin.first; block != nullptr; block = block->next) visit(*block);
    }
  }

  // Makes a popped or new block live. The caller has already counted it.
  void start(Block& block, Bytes requested, std::uint64_t serial, Line line) {
    block.requested = requested;
    block.serial = serial;
    block.line = line;
    block.born = line >= kFirstLine ? now() : 0;
    block.live = true;
    ++allocations_;
  }

  std::uint64_t hits() const { return hits_; }
  std::uint64_t allocations() const { return allocations_; }

  // Serial numbers for its next allocations: [next, end).
  struct Serials {
    std::uint64_t next = 0, end = 0;
  };
  Serials& serials() { return serials_; }

 private:
  static constexpr std::size_t kBins = 128, kProbes = 4;  // a size is in one of kProbes bins, beginning at its hash
  static constexpr std::uint32_t kMost = 256;             // blocks in the cache
  static constexpr std::uint32_t kHighestScore = 4;

  static std::int64_t now();  // nanoseconds of the steady clock
  static std::size_t hash(Bytes size) {
    return static_cast<std::size_t>(size / kAlignment * 0x9E3779B97F4A7C15u >> (64 - std::bit_width(kBins - 1)));
  }
  Bin* find(Bytes size) {
    Bin* bin = &bins_[hash(size)];
    for (const Bin* end = bin + kProbes; bin != end; ++bin) {
      if (bin->size == size) return bin;
    }
    return nullptr;
  }
  Block* drop(Bin& bin);
  void count(const Block& block, int more) {
    size_ += static_cast<std::uint32_t>(more);
    large_ += block.size > kSmall ? static_cast<std::uint32_t>(more) : 0;
  }

  const StreamIndex index_;
  RelaxedAtomic<bool> direct_{false};  // whether it may be used without the arena's lock
  SpinLock lock_;
  std::atomic<std::uint64_t> mark_{1};
  Admits admits_ = Admits::kNone;
  std::uint32_t size_ = 0;   // blocks
  std::uint32_t large_ = 0;  // blocks larger than kSmall
  RelaxedAtomic<cu::Stream> stream_{nullptr};
  RelaxedAtomic<std::uint64_t> tag_{0};
  std::uint64_t hits_ = 0, allocations_ = 0;
  Serials serials_;
  RelaxedAtomic<const void*> owner_{nullptr};  // of its stream, if the arena keeps one
  std::array<Bin, kBins + kProbes - 1> bins_;
};

// These two are inlined: with their callers, they are all that a hit and its free do in the core.
[[gnu::always_inline]] inline Block* StreamCache::take(Bin& bin, StreamKey stream, Bytes size, Bytes rounded, Line line,
                                                       ThreadCounters& counters) {
  if (!direct_ || !lock_.try_lock()) return nullptr;
  const std::lock_guard held(lock_, std::adopt_lock);
  if (!direct_ || !serves(stream) || serials_.next == serials_.end || !counters.has_room(size, rounded)) return nullptr;
  Block* block = pop(bin, rounded);
  if (block == nullptr) return nullptr;
  counters.add(size, rounded);
  ++hits_;
  start(*block, size, serials_.next++, line);
  return block;
}

[[gnu::always_inline]] inline bool StreamCache::give(Block& block, ThreadCounters& counters) {
  Bin* bin = direct_ ? bin_that_wants(block.size) : nullptr;
  if (bin == nullptr || !lock_.try_lock()) return false;
  const std::lock_guard held(lock_, std::adopt_lock);
  if (!direct_ || !block.live || !would_admit(block) || push(*bin, block) != Push::kCached) return false;
  block.live = false;
  counters.remove(block.requested, block.size);
  return true;
}

// The caches of all streams of an arena. Everything but find() needs the arena's lock.
//
// At most kMost streams have a cache of their own, because a request that needs more memory flushes all of them. The
// others share one that never has a block.
class StreamCaches {
 public:
  static constexpr StreamIndex kMost = 128;

  // The cache of a stream; null if there is none. It may already serve another stream, so the cache checks again.
  StreamCache* find(StreamKey stream) const;
  // The same for an explicit stream, whatever its tag is: of the streams that had a CUstream, only the last has a cache.
  StreamCache* find_explicit(cu::Stream stream) const;
  StreamCache* find_legacy() const { return legacy_.load(std::memory_order_acquire); }
  // The cache of a stream: created if there is none, or taken over from the previous stream with that index. Blocks
  // cached from now on get the mark.
  StreamCache& of(StreamIndex index, StreamKey stream, std::uint64_t mark, const void* owner = nullptr);
  // The stream is gone. Its cache is not used until it serves another stream.
  void forget(StreamIndex index);
  void set_mark(StreamIndex index, std::uint64_t number) {
    if (index < all_.size()) all_[index]->set_mark(number);
  }

  // Locks one cache, if it can be used without the arena's lock.
  class Guard {
   public:
    Guard(const StreamCaches& caches, StreamCache& cache)
        : cache_(caches.access_ == StreamCache::Access::kDirect ? &cache : nullptr) {
      if (cache_ != nullptr) cache_->lock().lock();
    }
    ~Guard() {
      if (cache_ != nullptr) cache_->lock().unlock();
    }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    StreamCache* cache_;
  };
  // Locks all caches.
  class AllLocked {
   public:
    explicit AllLocked(const StreamCaches& caches) : caches_(caches) {
      for (const auto& cache : caches_.all_) cache->lock().lock();
    }
    ~AllLocked() {
      for (const auto& cache : caches_.all_) cache->lock().unlock();
    }
    AllLocked(const AllLocked&) = delete;
    AllLocked& operator=(const AllLocked&) = delete;

   private:
    const StreamCaches& caches_;
  };

  template <typename Visit>
  void each(Visit visit) const {
    for (const auto& cache : all_) visit(*cache);
    visit(none_);
  }
  template <typename Visit>
  void each(Visit visit) {
    for (const auto& cache : all_) visit(*cache);
  }
  void set_policy(StreamCache::Access access, StreamCache::Admits admits);

  // A serial number for an allocation. If the cache has none left, it gets `many` new ones.
  std::uint64_t next_serial(StreamCache& cache, std::uint64_t many);
  // Every later allocation gets this number or a higher one. Needs all caches locked.
  std::uint64_t begin_serials();

 private:
  static constexpr std::size_t kSlots = 256, kProbes = 4;

  static std::size_t home(StreamKey stream);
  void publish(StreamCache& cache, StreamKey stream);

  std::vector<std::unique_ptr<StreamCache>> all_;  // by stream index
  StreamCache none_{kMost};                        // shared by streams without one of their own
  std::array<std::atomic<StreamCache*>, kSlots> slots_{};
  std::atomic<StreamCache*> legacy_ = nullptr;  // of the legacy stream, which is never dropped
  StreamCache::Access access_ = StreamCache::Access::kLocked;
  StreamCache::Admits admits_ = StreamCache::Admits::kNone;
  std::uint64_t serials_ = 0;
};

}  // namespace arena
