// Fronts and tallies by themselves: what is kept, and that the highest sums are exact although each thread counts alone.
#include "core/front.hpp"

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

struct Counted {
  Bytes requested, size;
};

TEST(a_front_hands_out_what_it_keeps_for_exactly_its_size) {
  Fronts fronts;
  Tallies tallies(1);
  Tally& tally = tallies.mine();
  fronts.set_policy(true, Front::Keeps::kAll);
  Front& front = fronts.of(0, key(16), 1);
  CHECK(fronts.find(key(16)) == &front && fronts.find(key(17)) == nullptr);
  Block block;
  block.size = 1024;
  block.front = &front;
  block.ordinary = true;
  front.miss(1024);
  front.miss(1024);
  tallies.add(tally, 1000, 1024);
  front.start(block, 1000, fronts.next_serial(front, 8), 0);
  CHECK(block.live && front.give(block, tally) && !block.live && !front.is_empty());
  CHECK(!front.give(block, tally));  // twice
  CHECK(front.seems_to_have(1024) && !front.seems_to_have(512));
  CHECK(front.take(key(16), 500, 512, 0, tally) == nullptr);
  CHECK(front.take(key(17), 1000, 1024, 0, tally) == nullptr);
  CHECK(front.take(key(16), 1010, 1024, 0, tally) == nullptr);  // a new height, which only the arena counts
  CHECK(front.take(key(16), 900, 1024, 7, tally) == &block);
  CHECK(block.live && block.requested == 900 && block.line == 7);
  CHECK(block.serial == 1 && front.allocations() == 2 && front.hits() == 1);
  fronts.forget(0);
  CHECK(fronts.find(key(16)) == nullptr && !front.give(block, tally));
}

TEST(a_front_keeps_small_blocks_only_when_told_so) {
  Front front(0);
  front.serve(key(16));
  Block small, large;
  small.size = Front::kSmall;
  large.size = Front::kSmall + kAlignment;
  front.set_policy(true, Front::Keeps::kSmall);
  CHECK(front.would_keep(small) && !front.would_keep(large));
  front.set_policy(true, Front::Keeps::kNone);
  CHECK(!front.would_keep(small));
}

TEST(a_front_keeps_sizes_that_come_again) {
  using enum Front::Push;
  Front front(0);
  front.serve(key(16));
  front.set_policy(true, Front::Keeps::kAll);
  Block block;
  block.size = 4096;
  CHECK(front.push(block) == kRefused);  // which nobody has asked for
  front.miss(4096);
  CHECK(front.push(block) == kRefused);  // once
  front.miss(4096);
  CHECK(front.push(block) == kKept && front.pop(4096) == &block);
  CHECK(front.push(block) == kKept);
  front.pop_all(Front::Which::kAll, [&](Block& kept) { CHECK(&kept == &block); });  // in vain
  CHECK(front.push(block) == kKept);
  front.pop_all(Front::Which::kAll, [](Block&) {});
  CHECK(front.push(block) == kRefused);
}

TEST(a_front_gives_up_what_is_large_and_keeps_what_is_small) {
  Front front(0);
  front.serve(key(16));
  front.set_policy(true, Front::Keeps::kAll);
  Block small, large;
  small.size = Front::kSmall;
  large.size = Front::kSmall + kAlignment;
  for (Block* block : {&small, &large}) {
    front.miss(block->size);
    front.miss(block->size);
    CHECK(front.push(*block) == Front::Push::kKept);
  }
  CHECK(front.has_large());
  front.pop_all(Front::Which::kLarge, [&](Block& block) { CHECK(&block == &large); });
  CHECK(!front.has_large() && !front.is_empty() && front.pop(small.size) == &small && front.is_empty());
}

// Among many others that come once, in a front that has far fewer bins.
TEST(a_front_learns_a_size_among_many) {
  Front front(0);
  front.serve(key(16));
  front.set_policy(true, Front::Keeps::kAll);
  std::vector<Block> blocks(2'000);
  Block often;
  often.size = kAlignment;
  Bytes size = kAlignment;
  int kept = 0, hits = 0;
  const auto give = [&](Block& block) {
    Front::Push pushed = front.push(block);
    if (pushed == Front::Push::kFull) {
      front.pop_all(Front::Which::kAll, [](Block&) {});
      pushed = front.push(block);
    }
    return pushed == Front::Push::kKept;
  };
  for (Block& block : blocks) {
    block.size = size += kAlignment;
    front.miss(block.size);
    kept += give(block);
    if (front.pop(often.size) == &often) {
      ++hits;
    } else {
      front.miss(often.size);
    }
    give(often);
  }
  CHECK(kept == 0 && hits > 1'900);
}

// Sizes that nobody asks for any more make room for others, and their blocks are kept no longer.
TEST(a_front_forgets_sizes_that_come_no_more) {
  using enum Front::Push;
  Front front(0);
  front.serve(key(16));
  front.set_policy(true, Front::Keeps::kAll);
  std::vector<Block> old(100), young(100);
  std::size_t kept = 0, dropped = 0;
  for (std::size_t i = 0; i < old.size(); ++i) {
    old[i].size = (i + 1) * kAlignment;
    young[i].size = (i + 1001) * kAlignment;
    for (int round = 0; round < 8; ++round) {
      for (const Block* rest = front.miss(old[i].size); rest != nullptr; rest = rest->next) ++dropped;
    }
    kept += front.push(old[i]) == kKept;
  }
  CHECK(kept > 40);
  for (int round = 0; round < 30; ++round) {
    for (const Block& block : young) {
      for (const Block* rest = front.miss(block.size); rest != nullptr; rest = rest->next) ++dropped;
    }
  }
  front.pop_all(Front::Which::kAll, [&](Block&) { ++dropped; });
  CHECK(dropped == kept);
  kept = 0;
  for (Block& block : young) {
    for (int round = 0; round < 8; ++round) front.miss(block.size);
    kept += front.push(block) == kKept;
  }
  CHECK(kept > 40);
}

// Each thread counts for itself, in turns that the lock decides, as with all fronts' locks held.
TEST(the_highest_sums_over_several_threads_are_exact) {
  Tallies tallies(2);
  std::mutex mutex;
  std::int64_t requested = 0, size = 0, most_requested = 0, most_live = 0;
  std::vector<Counted> live;
  const auto work = [&](unsigned seed) {
    std::mt19937 chance(seed);
    for (int step = 0; step < 10'000; ++step) {
      const std::lock_guard held(mutex);
      Tally& tally = tallies.mine();
      if (live.empty() || chance() % 2 == 0) {
        const Bytes asked = 1 + chance() % 5000, rounded = round_up(asked, kAlignment);
        if (tally.has_room(asked, rounded)) {
          tally.add(asked, rounded);
        } else {
          tallies.add(tally, asked, rounded);
        }
        live.push_back({asked, rounded});
        requested += static_cast<std::int64_t>(asked);
        size += static_cast<std::int64_t>(rounded);
      } else {  // perhaps another thread's
        std::swap(live[chance() % live.size()], live.back());
        tally.remove(live.back().requested, live.back().size);
        requested -= static_cast<std::int64_t>(live.back().requested);
        size -= static_cast<std::int64_t>(live.back().size);
        live.pop_back();
      }
      most_requested = std::max(most_requested, requested);
      most_live = std::max(most_live, size);
      const Sums sums = tallies.sums();
      CHECK(sums.requested == requested && sums.live == size);
      CHECK(sums.blocks == static_cast<std::int64_t>(live.size()));
      CHECK(tallies.peak().requested == most_requested && tallies.peak().live == most_live);
    }
  };
  for (unsigned round = 0; round < 3; ++round) {  // threads come and go
    std::thread one(work, 3 * round), two(work, 3 * round + 1), three(work, 3 * round + 2);
    one.join();
    two.join();
    three.join();
  }
}

TEST(a_thread_has_a_tally_for_each_arena) {
  Tallies first(3), second(4);
  CHECK(first.find() == nullptr);
  Tally& mine = first.mine();
  CHECK(&second.mine() != &mine && &first.mine() == &mine && first.find() == &mine);
  Tally* other = nullptr;
  std::thread([&] { other = &first.mine(); }).join();
  CHECK(other != &mine);
}

TEST(serials_are_never_given_twice) {
  std::mt19937 chance(4);
  Fronts fronts;
  Front* all[] = {&fronts.of(0, key(16), 1), &fronts.of(1, key(32), 1)};
  std::set<std::uint64_t> given;
  for (int step = 0; step < 5'000; ++step) {
    if (chance() % 100 == 0) {
      const std::uint64_t next = fronts.begin_serials();
      CHECK(given.empty() || next > *given.rbegin());
    }
    CHECK(given.insert(fronts.next_serial(*all[chance() % 2], 1 + chance() % 64)).second);
  }
}

// The way without the arena's lock, from two threads at one front: each block is in one pair of hands.
TEST(a_front_gives_no_block_to_two_threads) {
  Fronts fronts;
  fronts.set_policy(true, Front::Keeps::kAll);
  Front& front = fronts.of(0, key(16), 1);
  Tallies tallies(5);
  std::array<Block, 8> blocks;
  for (Block& block : blocks) {
    block.size = kAlignment;
    block.front = &front;
    tallies.add(tallies.mine(), 1, kAlignment);
    front.start(block, 1, fronts.next_serial(front, 1 << 20), 0);
  }
  front.miss(kAlignment);
  front.miss(kAlignment);
  for (Block& block : blocks) CHECK(front.give(block, tallies.mine()));
  std::mutex arena;  // of the arena, for what a thread does not do alone
  std::atomic<int> taken = 0;
  const auto work = [&](Line line) {
    Tally* tally = nullptr;
    {
      const std::lock_guard held(arena);
      tally = &tallies.mine();
      const Fronts::Held all(fronts);
      tallies.add(*tally, 4, 4 * kAlignment);  // a share of the highest sums
      tally->remove(4, 4 * kAlignment);
    }
    for (int i = 0; i < 20'000; ++i) {
      Block* block = front.take(key(16), 1, kAlignment, line, *tally);
      if (block == nullptr) continue;
      ++taken;
      CHECK(block->line == line && block->live);
      while (!front.give(*block, *tally)) {
      }
    }
  };
  std::thread one(work, 1), two(work, 2);
  one.join();
  two.join();
  CHECK(taken > 0 && tallies.sums().live == 0);
}

}  // namespace
}  // namespace arena
