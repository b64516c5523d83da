// Stream caches and the peak tracker on their own: what is cached, and that peaks are exact although each thread has
// its own counters.
#include "core/blocks/stream_cache.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "native/check.hpp"

namespace arena {
namespace {

StreamKey key(std::uintptr_t number) { return {reinterpret_cast<cu::Stream>(number), 0}; }

// As the heap does it.
Block* take(StreamCache& cache, StreamKey stream, Bytes size, Bytes rounded, Line line, ThreadCounters& counters) {
  StreamCache::Bin* bin = cache.bin_that_has(rounded);
  return bin != nullptr ? cache.take(*bin, stream, size, rounded, line, counters) : nullptr;
}
Block* pop(StreamCache& cache, Bytes size) {
  StreamCache::Bin* bin = cache.bin_that_has(size);
  return bin != nullptr ? cache.pop(*bin, size) : nullptr;
}
StreamCache::Push push(StreamCache& cache, Block& block) {
  StreamCache::Bin* bin = cache.bin_that_wants(block.size);
  return bin != nullptr ? cache.push(*bin, block) : StreamCache::Push::kRefused;
}

struct Counted {
  Bytes requested, size;
};

TEST(a_stream_cache_serves_only_requests_of_exactly_its_block_sizes) {
  StreamCaches caches;
  PeakTracker tracker(1);
  ThreadCounters& counters = tracker.of_this_thread();
  caches.set_policy(StreamCache::Access::kDirect, StreamCache::Admits::kAll);
  StreamCache& cache = caches.of(0, key(16), 1);
  CHECK(caches.find(key(16)) == &cache && caches.find(key(17)) == nullptr);
  Block block;
  block.size = 1024;
  block.cache = &cache;
  block.cacheable = true;
  cache.miss(1024);
  cache.miss(1024);
  tracker.add(counters, 1000, 1024);
  cache.start(block, 1000, caches.next_serial(cache, 8), 0);
  CHECK(block.live && cache.give(block, counters) && !block.live && !cache.is_empty());
  CHECK(!cache.give(block, counters));  // twice
  CHECK(cache.bin_that_has(1024) != nullptr && cache.bin_that_has(512) == nullptr);
  CHECK(take(cache, key(16), 500, 512, 0, counters) == nullptr);
  CHECK(take(cache, key(17), 1000, 1024, 0, counters) == nullptr);
  CHECK(take(cache, key(16), 1010, 1024, 0, counters) == nullptr);  // a new peak, which only the arena may count
  CHECK(take(cache, key(16), 900, 1024, 7, counters) == &block);
  CHECK(block.live && block.requested == 900 && block.line == 7);
  CHECK(block.serial == 1 && cache.allocations() == 2 && cache.hits() == 1);
  caches.forget(0);
  CHECK(caches.find(key(16)) == nullptr && !cache.give(block, counters));
}

TEST(a_stream_cache_admits_blocks_by_its_policy) {
  StreamCache cache(0);
  cache.serve(key(16));
  Block small, large;
  small.size = StreamCache::kSmall;
  large.size = StreamCache::kSmall + kAlignment;
  cache.set_policy(StreamCache::Access::kDirect, StreamCache::Admits::kSmall);
  CHECK(cache.would_admit(small) && !cache.would_admit(large));
  cache.set_policy(StreamCache::Access::kDirect, StreamCache::Admits::kNone);
  CHECK(!cache.would_admit(small));
}

TEST(a_stream_cache_keeps_sizes_that_recur) {
  using enum StreamCache::Push;
  StreamCache cache(0);
  cache.serve(key(16));
  cache.set_policy(StreamCache::Access::kDirect, StreamCache::Admits::kAll);
  Block block;
  block.size = 4096;
  CHECK(push(cache, block) == kRefused);  // never requested
  cache.miss(4096);
  CHECK(push(cache, block) == kRefused);  // requested once
  cache.miss(4096);
  CHECK(push(cache, block) == kCached && pop(cache, 4096) == &block);
  CHECK(push(cache, block) == kCached);
  cache.pop_all(StreamCache::Which::kAll, [&](Block& kept) { CHECK(&kept == &block); });  // halves the score
  CHECK(push(cache, block) == kCached);
  cache.pop_all(StreamCache::Which::kAll, [](Block&) {});
  CHECK(push(cache, block) == kRefused);
}

TEST(a_stream_cache_can_flush_large_blocks_and_keep_small_ones) {
  StreamCache cache(0);
  cache.serve(key(16));
  cache.set_policy(StreamCache::Access::kDirect, StreamCache::Admits::kAll);
  Block small, large;
  small.size = StreamCache::kSmall;
  large.size = StreamCache::kSmall + kAlignment;
  for (Block* block : {&small, &large}) {
    cache.miss(block->size);
    cache.miss(block->size);
    CHECK(push(cache, *block) == StreamCache::Push::kCached);
  }
  CHECK(cache.has_large());
  cache.pop_all(StreamCache::Which::kLarge, [&](Block& block) { CHECK(&block == &large); });
  CHECK(!cache.has_large() && !cache.is_empty() && pop(cache, small.size) == &small && cache.is_empty());
}

// Among many sizes that occur once, in a cache with far fewer bins.
TEST(a_stream_cache_learns_a_size_among_many) {
  StreamCache cache(0);
  cache.serve(key(16));
  cache.set_policy(StreamCache::Access::kDirect, StreamCache::Admits::kAll);
  std::vector<Block> blocks(2'000);
  Block often;
  often.size = kAlignment;
  Bytes size = kAlignment;
  int kept = 0, hits = 0;
  const auto give = [&](Block& block) {
    StreamCache::Push pushed = push(cache, block);
    if (pushed == StreamCache::Push::kFull) {
      cache.pop_all(StreamCache::Which::kAll, [](Block&) {});
      pushed = push(cache, block);
    }
    return pushed == StreamCache::Push::kCached;
  };
  for (Block& block : blocks) {
    block.size = size += kAlignment;
    cache.miss(block.size);
    kept += give(block);
    if (pop(cache, often.size) == &often) {
      ++hits;
    } else {
      cache.miss(often.size);
    }
    give(often);
  }
  CHECK(kept == 0 && hits > 1'900);
}

// Sizes that are no longer requested make room for others, and their blocks are evicted.
TEST(a_stream_cache_forgets_sizes_that_do_not_recur) {
  using enum StreamCache::Push;
  StreamCache cache(0);
  cache.serve(key(16));
  cache.set_policy(StreamCache::Access::kDirect, StreamCache::Admits::kAll);
  std::vector<Block> old(100), young(100);
  std::size_t kept = 0, dropped = 0;
  for (std::size_t i = 0; i < old.size(); ++i) {
    old[i].size = (i + 1) * kAlignment;
    young[i].size = (i + 1001) * kAlignment;
    for (int round = 0; round < 8; ++round) {
      for (const Block* rest = cache.miss(old[i].size); rest != nullptr; rest = rest->next) ++dropped;
    }
    kept += push(cache, old[i]) == kCached;
  }
  CHECK(kept > 40);
  for (int round = 0; round < 30; ++round) {
    for (const Block& block : young) {
      for (const Block* rest = cache.miss(block.size); rest != nullptr; rest = rest->next) ++dropped;
    }
  }
  cache.pop_all(StreamCache::Which::kAll, [&](Block&) { ++dropped; });
  CHECK(dropped == kept);
  kept = 0;
  for (Block& block : young) {
    for (int round = 0; round < 8; ++round) cache.miss(block.size);
    kept += push(cache, block) == kCached;
  }
  CHECK(kept > 40);
}

// Each thread has its own counters; a mutex stands for the caches' locks.
TEST(the_peaks_over_several_threads_are_exact) {
  PeakTracker tracker(2);
  std::mutex mutex;
  std::int64_t requested = 0, size = 0, most_requested = 0, most_live = 0;
  std::vector<Counted> live;
  const auto work = [&](unsigned seed) {
    std::mt19937 chance(seed);
    for (int step = 0; step < 10'000; ++step) {
      const std::lock_guard held(mutex);
      ThreadCounters& counters = tracker.of_this_thread();
      if (live.empty() || chance() % 2 == 0) {
        const Bytes asked = 1 + chance() % 5000, rounded = round_up(asked, kAlignment);
        if (counters.has_room(asked, rounded)) {
          counters.add(asked, rounded);
        } else {
          tracker.add(counters, asked, rounded);
        }
        live.push_back({asked, rounded});
        requested += static_cast<std::int64_t>(asked);
        size += static_cast<std::int64_t>(rounded);
      } else {  // may be another thread's
        std::swap(live[chance() % live.size()], live.back());
        counters.remove(live.back().requested, live.back().size);
        requested -= static_cast<std::int64_t>(live.back().requested);
        size -= static_cast<std::int64_t>(live.back().size);
        live.pop_back();
      }
      most_requested = std::max(most_requested, requested);
      most_live = std::max(most_live, size);
      const Sums sums = tracker.sums();
      CHECK(sums.requested == requested && sums.live == size);
      CHECK(sums.blocks == static_cast<std::int64_t>(live.size()));
      CHECK(tracker.peak().requested == most_requested && tracker.peak().live == most_live);
    }
  };
  for (unsigned round = 0; round < 3; ++round) {  // threads come and go
    std::thread one(work, 3 * round), two(work, 3 * round + 1), three(work, 3 * round + 2);
    one.join();
    two.join();
    three.join();
  }
}

TEST(a_thread_has_counters_for_each_arena) {
  PeakTracker first(3), second(4);
  CHECK(first.find() == nullptr);
  ThreadCounters& mine = first.of_this_thread();
  CHECK(&second.of_this_thread() != &mine && &first.of_this_thread() == &mine && first.find() == &mine);
  ThreadCounters* other = nullptr;
  std::thread([&] { other = &first.of_this_thread(); }).join();
  CHECK(other != &mine);
}

TEST(serials_are_never_reused) {
  std::mt19937 chance(4);
  StreamCaches caches;
  StreamCache* all[] = {&caches.of(0, key(16), 1), &caches.of(1, key(32), 1)};
  std::set<std::uint64_t> given;
  for (int step = 0; step < 5'000; ++step) {
    if (chance() % 100 == 0) {
      const std::uint64_t next = caches.begin_serials();
      CHECK(given.empty() || next > *given.rbegin());
    }
    CHECK(given.insert(caches.next_serial(*all[chance() % 2], 1 + chance() % 64)).second);
  }
}

// Two threads use one cache without the arena's lock.
TEST(a_stream_cache_gives_no_block_to_two_threads) {
  StreamCaches caches;
  caches.set_policy(StreamCache::Access::kDirect, StreamCache::Admits::kAll);
  StreamCache& cache = caches.of(0, key(16), 1);
  PeakTracker tracker(5);
  std::array<Block, 8> blocks;
  for (Block& block : blocks) {
    block.size = kAlignment;
    block.cache = &cache;
    tracker.add(tracker.of_this_thread(), 1, kAlignment);
    cache.start(block, 1, caches.next_serial(cache, 1 << 20), 0);
  }
  cache.miss(kAlignment);
  cache.miss(kAlignment);
  for (Block& block : blocks) CHECK(cache.give(block, tracker.of_this_thread()));
  std::mutex arena;  // stands for the arena's lock
  std::atomic<int> taken = 0;
  const auto work = [&](Line line) {
    ThreadCounters* counters = nullptr;
    {
      const std::lock_guard held(arena);
      counters = &tracker.of_this_thread();
      const StreamCaches::AllLocked all(caches);
      tracker.add(*counters, 4, 4 * kAlignment);  // gives the thread a share of the peak
      counters->remove(4, 4 * kAlignment);
    }
    for (int i = 0; i < 20'000; ++i) {
      Block* block = take(cache, key(16), 1, kAlignment, line, *counters);
      if (block == nullptr) continue;
      ++taken;
      CHECK(block->line == line && block->live);
      while (!cache.give(*block, *counters)) {
      }
    }
  };
  std::thread one(work, 1), two(work, 2);
  one.join();
  two.join();
  CHECK(taken > 0 && tracker.sums().live == 0);
}

}  // namespace
}  // namespace arena
