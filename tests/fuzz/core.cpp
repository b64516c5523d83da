// Interprets bytes as operations on an arena over the simulated driver. After each operation it checks every invariant,
// compares the account with its own list of blocks and with the driver's count, and checks the contents of blocks.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <random>
#include <vector>

#include "native/sim.hpp"

namespace arena {
namespace {

using test::Sim;

constexpr Bytes kMiB = Bytes{1} << 20, kMemory = 64 * kMiB;
constexpr const char* kFunctions[] = {"cuMemCreate",       "cuMemMap",      "cuMemSetAccess", "cuEventRecord",
                                      "cuStreamWaitEvent", "cuEventCreate", "cuMemAlloc",     "cuMemGetInfo"};
constexpr const char* kErrors[] = {"CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_UNKNOWN"};

// Bytes, and zeros after their end.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), end_(data + size) {}
  bool is_empty() const { return data_ == end_; }
  unsigned byte() { return is_empty() ? 0 : *data_++; }
  unsigned below(unsigned count) { return byte() % count; }
  // Of all magnitudes, up to a little more than a whole device.
  Bytes size() {
    const unsigned shift = below(20);
    return (Bytes{byte()} << shift) + below(4);
  }

 private:
  const std::uint8_t* data_;
  const std::uint8_t* end_;
};

class Machine {
 public:
  Machine() {
    for (int i = 0; i < 3; ++i) streams.push_back(device.new_stream());
    streams.push_back(nullptr);
  }
  Sim sim{"64MiB"};
  Device device{sim.driver(), 0};  // whose context the streams live in
  std::vector<cu::Stream> streams;
};

class Player {
 public:
  Player(Machine& machine, Input input) : machine_(machine), input_(input) {
    const unsigned first = input_.byte();
    cap_ = (8 + first % 56) * kMiB;
    const Sim::Memory memory = first < 192 ? Sim::Memory::kVirtual : Sim::Memory::kPlain;
    arena_ = machine_.sim.arena(cap_, memory, (first % 3) * 4 * kMiB + 1);
  }

  void play() {
    for (int step = 0; step < 200 && !input_.is_empty(); ++step) {
      try {
        act(input_.below(16));
      } catch (const OutOfMemory&) {
      } catch (const DriverError& error) {
        if (!failing_) std::fprintf(stderr, "%s\n", error.what());
        CHECK(failing_);
      } catch (const UsageError&) {
        CHECK(closed_);
      } catch (const Error&) {  // the device failed twice during a re-backing
        CHECK(failing_ && has_lost());
      }
      check();
    }
    machine_.sim.set("fail", "");
    while (!held_.empty()) free_one();
    check();
    while (!scopes_.empty()) end_scope();
    arena_.reset();
    machine_.sim.check_all_returned();
  }

 private:
  struct Held {
    Block* block;
    std::uint64_t address;
    Bytes size;
    std::uint64_t mark;
    unsigned pins = 0;
  };

  void act(unsigned what) {
    if (what < 4) return allocate();
    if (what < 7) return free_one();
    if (what == 7) return record_stream();
    if (what == 8) return arena_->trim();
    if (what == 9) return set_cap();
    if (what == 10) return reserve();
    if (what == 11) return scopes_.empty() || input_.below(2) == 0 ? begin_scope() : end_scope();
    if (what == 12) return plan_failure();
    if (what == 13) return pin();
    if (what == 14) return arena_->is_plain() ? arena_->trim() : arena_->compact();
    if (input_.below(16) == 0) return close();
    CHECK(arena_->snapshot().stats.reserved == machine_.sim.used());
  }

  void allocate() {
    const Bytes size = input_.size();
    const unsigned how = input_.byte();
    const Moving moving = how % 4 != 0 ? Moving::kAllowed : Moving::kForbidden;
    const cu::Stream stream = some_stream();
    Block* block = how >= 128 ? arena_->try_allocate(size, stream) : nullptr;
    try {
      if (block == nullptr)
        block = &arena_->allocate({.size = size, .stream = stream, .line = how % 3u, .moving = moving});
      return hold(*block, size);
    } catch (const OutOfMemory& error) {
      if (failing_ || closed_ || error.failure().largest == 0) return;
      // The error says that this would have passed.
      block = &arena_->allocate({.size = error.failure().largest, .stream = stream, .moving = moving});
      hold(*block, error.failure().largest);
    }
  }
  void hold(Block& block, Bytes size) {
    CHECK(block.size >= size && block.address % kAlignment == 0);
    for (const Held& other : held_) {
      CHECK(block.address + block.size <= other.address || other.address + other.block->size <= block.address);
    }
    held_.push_back({.block = &block, .address = block.address, .size = size, .mark = ++marks_});
    for (std::uint64_t* word : words(held_.back())) *word = marks_;
  }
  void free_one() {
    if (held_.empty()) return;
    std::swap(held_[input_.below(static_cast<unsigned>(held_.size()))], held_.back());
    const Held held = held_.back();
    if (!held.block->lost) {
      for (const std::uint64_t* word : words(held)) CHECK(*word == held.mark);
    }
    held_.pop_back();
    if (input_.below(2) == 0 && arena_->try_free(*held.block)) return;
    arena_->free(held.address);
    CHECK_THROWS(UsageError, arena_->free(held.address));
  }
  void record_stream() {
    if (!held_.empty())
      arena_->record_stream(held_[input_.below(static_cast<unsigned>(held_.size()))].address, some_stream());
  }
  void set_cap() {
    cap_ = std::min(kMemory, input_.size());
    highest_cap_ = std::max(highest_cap_, arena_->reserved());
    arena_->set_cap(cap_);
  }
  void reserve() { arena_->reserve(input_.size() / 2); }
  void begin_scope() {
    const unsigned budget = input_.byte();
    if (scopes_.size() < 8) {
      scopes_.push_back(arena_->begin_scope("s", budget % 2 == 0 ? std::optional<Bytes>() : Bytes{budget} << 16));
    }
  }
  void end_scope() {
    arena_->end_scope(*scopes_.back());
    scopes_.pop_back();
  }
  void plan_failure() {
    failing_ = true;
    const char* function = kFunctions[input_.below(std::size(kFunctions))];
    const unsigned long long nth = 1 + input_.below(6), times = 1 + input_.below(3);
    machine_.sim.fail(function, nth, times, kErrors[input_.below(2)]);
  }
  void pin() {
    if (held_.empty()) return;
    Held& held = held_[input_.below(static_cast<unsigned>(held_.size()))];
    if (held.block->lost) return;
    if (held.pins > 0 && input_.below(2) == 0) {
      arena_->unpin(held.address);
      --held.pins;
    } else {
      arena_->pin(held.address);
      ++held.pins;
    }
  }
  void close() {
    closed_ = true;
    arena_->close();
  }

  void check() {
    arena_->validate();
    const Stats s = arena_->stats();
    Bytes requested = 0;
    std::size_t count = 0;
    for (const Held& held : held_) {
      if (held.block->lost) continue;
      requested += held.size;
      ++count;
    }
    CHECK(s.requested == requested && s.blocks == count);
    CHECK(s.reserved == s.requested + s.rounding + s.pending + s.captured + s.releasable + s.stranded + s.spare);
    CHECK(s.reserved == machine_.sim.used() && s.live <= s.peak_live && s.reserved <= s.peak_reserved);
    highest_cap_ = std::max(highest_cap_, cap_);
    CHECK(s.reserved <= highest_cap_);
  }

  bool has_lost() const {
    return std::any_of(held_.begin(), held_.end(), [](const Held& held) { return held.block->lost; });
  }
  cu::Stream some_stream() { return machine_.streams[input_.below(static_cast<unsigned>(machine_.streams.size()))]; }
  static std::array<std::uint64_t*, 2> words(const Held& held) {
    auto* first = reinterpret_cast<std::uint64_t*>(held.address);
    return {first, first + (held.size < 8 ? 0 : (held.size - 8) / 8)};
  }

  Machine& machine_;
  Input input_;
  std::unique_ptr<Arena> arena_;
  std::vector<Held> held_;
  std::vector<std::shared_ptr<Scope>> scopes_;
  Bytes cap_ = 0, highest_cap_ = 0;
  std::uint64_t marks_ = 0;
  bool failing_ = false, closed_ = false;
};

}  // namespace
}  // namespace arena

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static arena::Machine& machine = *new arena::Machine;
  arena::Player(machine, {data, size}).play();
  return 0;
}
