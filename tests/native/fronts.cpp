// Fronts by themselves: what they keep, and that the highest values are exact although each counts for itself.
#include "core/front.hpp"

#include <algorithm>
#include <random>
#include <set>
#include <thread>

#include "native/check.hpp"

namespace arena {
namespace {

StreamKey key(std::uintptr_t number) { return {reinterpret_cast<cu::Stream>(number), 0}; }

struct Counted {
  Front* front;
  Bytes requested, size;
};

TEST(a_front_hands_out_what_it_keeps_for_exactly_its_size) {
  Fronts fronts;
  fronts.set_policy(true, Front::Keeps::kAll);
  Front& front = fronts.of(0, key(16));
  CHECK(fronts.find(key(16)) == &front && fronts.find(key(17)) == nullptr);
  Block block;
  block.size = 1024;
  block.front = &front;
  block.ordinary = true;
  fronts.count(front, 1000, 1024);
  front.start(block, 1000, fronts.next_serial(front, 8), 0);
  CHECK(block.live && front.give(block) && !block.live && !front.is_empty());
  CHECK(!front.give(block));  // twice
  CHECK(front.take(key(16), 500, 512, 0) == nullptr);
  CHECK(front.take(key(17), 1000, 1024, 0) == nullptr);
  CHECK(front.take(key(16), 1010, 1024, 0) == nullptr);  // would be a new height, which only the arena counts
  CHECK(front.take(key(16), 900, 1024, 7) == &block && block.live && block.requested == 900 && block.line == 7);
  CHECK(block.serial == 1 && front.allocations() == 2 && front.hits() == 1);
  fronts.forget(0);
  CHECK(fronts.find(key(16)) == nullptr && !front.give(block));
}

TEST(a_front_keeps_small_blocks_only_when_told_so) {
  Front front;
  front.serve(key(16));
  Block small, large;
  small.size = Front::kSmall;
  large.size = Front::kSmall + kAlignment;
  front.set_policy(true, Front::Keeps::kSmall);
  CHECK(front.would_keep(small) && !front.would_keep(large));
  front.set_policy(true, Front::Keeps::kNone);
  CHECK(!front.would_keep(small));
}

TEST(the_highest_values_over_several_fronts_are_exact) {
  std::mt19937 chance(3);
  Fronts fronts;
  Front* all[] = {&fronts.of(0, key(16)), &fronts.of(1, key(32)), &fronts.of(2, key(48))};
  std::vector<Counted> live;
  Bytes requested = 0, size = 0, most_requested = 0, most_live = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (live.empty() || chance() % 2 == 0) {
      const Bytes asked = 1 + chance() % 5000, rounded = round_up(asked, kAlignment);
      Front& front = *all[chance() % 3];
      if (front.has_room(asked, rounded)) {
        front.count(asked, rounded);
      } else {
        fronts.count(front, asked, rounded);
      }
      live.push_back({&front, asked, rounded});
      requested += asked;
      size += rounded;
    } else {
      std::swap(live[chance() % live.size()], live.back());
      live.back().front->discount(live.back().requested, live.back().size);
      requested -= live.back().requested;
      size -= live.back().size;
      live.pop_back();
    }
    most_requested = std::max(most_requested, requested);
    most_live = std::max(most_live, size);
    CHECK(fronts.sums().requested == requested && fronts.sums().live == size);
    CHECK(fronts.peak().requested == most_requested && fronts.peak().live == most_live);
  }
}

TEST(serials_are_never_given_twice) {
  std::mt19937 chance(4);
  Fronts fronts;
  Front* all[] = {&fronts.of(0, key(16)), &fronts.of(1, key(32))};
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
  Front& front = fronts.of(0, key(16));
  std::array<Block, 8> blocks;
  for (Block& block : blocks) {
    block.size = kAlignment;
    block.front = &front;
    fronts.count(front, 1, kAlignment);
    front.start(block, 1, fronts.next_serial(front, 1 << 20), 0);
  }
  for (Block& block : blocks) CHECK(front.give(block));
  const auto work = [&](Line line) {
    for (int i = 0; i < 20'000; ++i) {
      Block* block = front.take(key(16), 1, kAlignment, line);
      if (block == nullptr) continue;
      CHECK(block->line == line && block->live);
      while (!front.give(*block)) {
      }
    }
  };
  std::thread one(work, 1), two(work, 2);
  one.join();
  two.join();
  CHECK(fronts.sums().live == 0 && front.blocks() == 0);
}

}  // namespace
}  // namespace arena
