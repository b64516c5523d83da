// The arena on the simulated driver, used by several threads at once. Under ThreadSanitizer this tests its locks.
#include "core/arena/arena.hpp"

#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "native/sim.hpp"
#include "trace/recorder.hpp"

namespace arena {
namespace {

using test::Sim;

constexpr Bytes kMiB = Bytes{1} << 20;

// The blocks of a thread. Each has the thread's mark in its first and last word, which no other thread may change.
class Holder {
 public:
  Holder(Arena& arena, cu::Stream own, cu::Stream other, unsigned seed)
      : arena_(arena), own_(own), other_(other), seed_(seed), chance_(seed) {}
  ~Holder() {
    while (!held_.empty()) give();
  }

  void step() {
    const unsigned what = chance_() % 64;
    if (what < 30) {
      take();
    } else if (what < 58) {
      if (!held_.empty()) give();
    } else if (what < 60) {
      if (!held_.empty()) arena_.record_stream(held_.back().block->address, other_);
    } else {
      look(what);
    }
  }

 private:
  struct Held {
    Block* block;
    std::uint64_t address;
    Bytes size;
  };

  void take() {
    static constexpr Bytes kSizes[] = {512, 512, 4096, 100'000, 3 * kMiB};
    const Bytes size = kSizes[chance_() % std::size(kSizes)] - chance_() % 2;
    try {
      Block* block = chance_() % 2 == 0 ? arena_.try_allocate(size, own_) : nullptr;
      if (block == nullptr) block = &arena_.allocate({.size = size, .stream = own_, .line = 1});
      held_.push_back({block, block->address, size});
      for (std::uint64_t* word : words(held_.back())) *word = seed_;
    } catch (const OutOfMemory& error) {
      CHECK(error.failure().stats.reserved <= 64 * kMiB);
    }
  }
  void give() {
    std::swap(held_[chance_() % held_.size()], held_.back());
    const Held held = held_.back();
    held_.pop_back();
    for (const std::uint64_t* word : words(held)) CHECK(*word == seed_);
    if (chance_() % 2 == 0 && arena_.try_free(*held.block)) return;
    arena_.free(*held.block);
  }
  void look(unsigned what) {
    if (what == 60) {
      const Stats s = arena_.stats(Moving::kForbidden);
      CHECK(s.reserved == s.requested + s.rounding + s.pending + s.captured + s.releasable + s.stranded + s.spare);
    } else if (what == 61) {
      arena_.validate();
    } else if (what == 62) {
      arena_.trim();
    } else {
      CHECK(arena_.snapshot(Moving::kForbidden).granule > 0);
    }
  }
  static std::array<std::uint64_t*, 2> words(const Held& held) {
    auto* first = reinterpret_cast<std::uint64_t*>(held.address);
    return {first, first + (held.size - 8) / 8};
  }

  Arena& arena_;
  const cu::Stream own_, other_;
  const unsigned seed_;
  std::mt19937 chance_;
  std::vector<Held> held_;
};

enum class StreamUse { kOwn, kShared };

void work(Arena& arena, int threads, int steps, StreamUse use) {
  std::vector<cu::Stream> streams;
  for (int i = 0; i < threads; ++i) streams.push_back(arena.device().new_stream());
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&, i] {
      const auto at = static_cast<std::size_t>(i);
      Holder holder(arena, streams[use == StreamUse::kShared ? 0 : at], streams[(at + 1) % streams.size()],
                    1 + static_cast<unsigned>(i));
      for (int step = 0; step < steps; ++step) holder.step();
    });
  }
  for (std::thread& thread : all) thread.join();
  for (const cu::Stream stream : streams) arena.device().delete_stream(stream);
}

// For when all threads are done.
void check_empty(Arena& arena) {
  arena.validate();
  const Stats stats = arena.stats();
  CHECK(stats.live == 0 && stats.blocks == 0 && stats.peak_reserved <= 64 * kMiB);
}

void work_on_a_new_machine(Sim::Memory memory, StreamUse use) {
  const Sim sim;
  {
    const auto arena = sim.arena(64 * kMiB, memory);
    work(*arena, 3, 1'500, use);
    check_empty(*arena);
    CHECK(arena->reserved() == sim.used());
    arena->trim();
    CHECK(arena->reserved() == 0);
  }
  sim.check_all_returned();
}

TEST(threads_on_streams_of_their_own) { work_on_a_new_machine(Sim::Memory::kVirtual, StreamUse::kOwn); }
TEST(threads_on_one_stream) { work_on_a_new_machine(Sim::Memory::kVirtual, StreamUse::kShared); }
TEST(threads_on_plain_segments) { work_on_a_new_machine(Sim::Memory::kPlain, StreamUse::kOwn); }

TEST(threads_while_the_cap_changes_and_a_recording_begins_and_ends) {
  const Sim sim;
  {
    const auto arena = sim.arena(64 * kMiB);
    std::atomic<bool> over = false;
    std::thread other([&] {
      for (unsigned i = 0; !over; ++i) {
        arena->set_cap((16 + i % 3 * 24) * kMiB);
        const auto recorder = i % 2 == 0 ? std::make_shared<Recorder>() : nullptr;
        arena->observe(recorder);
        if (recorder) recorder->next(std::chrono::milliseconds(1));
        const auto scope = arena->begin_scope("other", kMiB);
        try {
          arena->free(arena->allocate(1000, nullptr));
        } catch (const OutOfMemory&) {
        }
        CHECK(scope->live() == 0);
        arena->end_scope(*scope);
        CHECK(arena->cap() <= 64 * kMiB && arena->reserved() <= 64 * kMiB);
      }
    });
    work(*arena, 2, 1'500, StreamUse::kOwn);
    over = true;
    other.join();
    check_empty(*arena);
  }
  sim.check_all_returned();
}

TEST(an_arena_is_closed_while_threads_work_in_it) {
  const Sim sim;
  {
    const auto arena = sim.arena(64 * kMiB);
    const auto take_and_give = [&] {
      try {
        while (true) arena->free(arena->allocate(10'000, nullptr));
      } catch (const UsageError&) {  // closed
      }
    };
    std::thread one(take_and_give), two(take_and_give);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    arena->close();
    one.join();
    two.join();
    CHECK(arena->stats().live == 0);
    arena->validate();
  }
  sim.check_all_returned();
}

// A thread gives the device work faster than it can finish it, and frees memory after it that a request needs.
TEST(a_request_does_not_wait_forever_while_others_keep_freeing) {
  const Sim sim;
  {
    const auto arena = sim.arena(64 * kMiB, Sim::Memory::kVirtual, 4 * kMiB);
    Block& warm = arena->allocate(32 * kMiB, nullptr);
    Block& fence = arena->allocate(4 * kMiB, nullptr);
    arena->free(warm);
    sim.set("delay", "1000");
    std::atomic<bool> stop = false, over = false;
    std::thread other([&] {
      const Device& device = arena->device();
      const cu::Stream stream = device.new_stream();
      const cu::Event event = device.new_event(device.context());
      const auto begin = std::chrono::steady_clock::now();
      while (!stop && !over) {
        try {
          Block& block = arena->allocate(4 * kMiB, stream);
          for (int i = 0; i < 3; ++i) device.record(event, stream);
          arena->free(block);
        } catch (const OutOfMemory&) {
        }
        std::this_thread::sleep_for(std::chrono::microseconds(1'500));
        over = std::chrono::steady_clock::now() - begin > std::chrono::seconds(20);
      }
      device.delete_event(event);
      device.delete_stream(stream);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    try {
      arena->free(arena->allocate(60 * kMiB, nullptr));
    } catch (const OutOfMemory&) {
    }
    CHECK(!over);
    stop = true;
    other.join();
    sim.set("delay", "0");
    arena->free(fence);
    check_empty(*arena);
  }
  sim.check_all_returned();
}

// The re-backing waits for a host function, which makes another thread free a block whose data is then lost.
TEST(a_block_freed_while_its_data_is_lost_is_counted_once_and_not_reused) {
  const Sim sim;
  {
    const auto arena = sim.arena(64 * kMiB, Sim::Memory::kVirtual, 64 * kMiB);
    std::vector<Block*> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(&arena->allocate(2 * kMiB, nullptr));
    for (std::size_t i = 1; i < blocks.size(); i += 2) arena->free(*blocks[i]);
    std::atomic<bool> ready = false, go = false, done = false;
    std::thread other([&] {
      Block& first = arena->allocate(512, nullptr);
      Block& second = arena->allocate(512, nullptr);  // from now on this size is cached
      ready = true;
      while (!go) std::this_thread::yield();
      arena->free(first);
      done = true;
      while (go) std::this_thread::yield();
      arena->free(second);
    });
    while (!ready) std::this_thread::yield();
    CHECK_THROWS(OutOfMemory, arena->allocate(54 * kMiB, nullptr));
    while (arena->stats().pending > 0) arena->trim();
    const cu::Stream stream = arena->device().new_stream();
    sim.set("delay", "300000");
    const auto call = [&] {
      sim.fail("cuMemMap", 2, 2, "CUDA_ERROR_UNKNOWN");
      go = true;
      while (!done) std::this_thread::yield();
    };
    sim.launch(stream, call);
    CHECK_THROWS(Error, arena->allocate({.size = 54 * kMiB, .moving = Moving::kAllowed}));
    CHECK(done);
    sim.set("delay", "0");
    arena->validate();
    Block& again = arena->allocate(512, nullptr);
    std::memset(reinterpret_cast<void*>(again.address), 1, 512);
    arena->free(again);
    go = false;
    other.join();
    for (std::size_t i = 0; i < blocks.size(); i += 2) arena->free(*blocks[i]);
    arena->device().delete_stream(stream);
    check_empty(*arena);
  }
  sim.check_all_returned();
}

TEST(pointers_and_bytes_stay_while_an_arena_is_compacted) {
  const Sim sim;
  {
    const auto arena = sim.arena(128 * kMiB, Sim::Memory::kVirtual, 64 * kMiB);
    std::vector<Block*> blocks;
    for (int i = 0; i < 12; ++i) blocks.push_back(&arena->allocate(3 * kMiB, nullptr));
    for (std::size_t i = 0; i < blocks.size(); i += 2) arena->free(*blocks[i]);
    for (std::size_t i = 1; i < blocks.size(); i += 2) {
      std::memset(reinterpret_cast<void*>(blocks[i]->address), static_cast<int>(i), 3 * kMiB);
    }
    const Bytes before = arena->reserved();
    arena->compact();
    CHECK(arena->reserved() < before && arena->reserved() == sim.used());
    arena->validate();
    for (std::size_t i = 1; i < blocks.size(); i += 2) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(blocks[i]->address);
      CHECK(bytes[0] == i && bytes[kMiB] == i && bytes[3 * kMiB - 1] == i);
      arena->free(*blocks[i]);
    }
  }
  sim.check_all_returned();
}

// The silence of validate() in other tests means something only if it notices errors.
TEST(validate_notices_a_block_that_differs_from_its_counts) {
  const Sim sim;
  {
    const auto arena = sim.arena(64 * kMiB);
    Block& one = arena->allocate(1000, nullptr);
    Block& two = arena->allocate(1000, nullptr);
    const auto reports = [&](const std::string& what) {
      try {
        arena->validate();
      } catch (const Error& error) {
        return std::string(error.what()).find(what) != std::string::npos;
      }
      return false;
    };
    const auto check = [&](auto& field, auto wrong, const char* what) {
      const auto right = std::exchange(field, wrong);
      CHECK(reports(what));
      field = right;
      arena->validate();
    };
    check(one.requested, Bytes{999}, "running totals");
    check(one.live, false, "running totals");
    check(one.size, one.size + kAlignment, "pieces overlap");
    check(two.address, two.address + kAlignment, "a block's address");
    check(two.offset, 32 * kMiB, "a block's address");
    arena->free(one);
    arena->free(two);
    check_empty(*arena);
  }
  sim.check_all_returned();
}

}  // namespace
}  // namespace arena
