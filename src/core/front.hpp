// The way of the common pair of calls: a block that was freed is kept by the front of its stream, and handed out again
// for the next request of exactly its size, with no more than the front's own lock. Nobody else needs to be asked:
//
//   - The stream is the same, so there is nothing to wait for.
//   - The block stays where it was, so no granule is touched, nothing is taken from the driver, and no cap is passed.
//   - What is in users' hands is counted by each thread for itself (tally.hpp).
//
// What is kept is free. The arena puts it down, among the gaps, before it touches a new granule; and when somebody looks,
// after which it picks it up again: the same requests meet the same arena, whoever looks, and however often.
//
// The arena's lock is taken before a front's, and several fronts' in the order of their streams.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/blocks.hpp"
#include "core/streams.hpp"
#include "core/tally.hpp"
#include "core/types.hpp"

namespace arena {

// Held for nanoseconds; while all fronts are looked at, for microseconds.
class SpinLock {
 public:
  bool try_lock() { return !taken_.exchange(true, std::memory_order_acquire); }
  void lock() {
    while (!try_lock()) wait();
  }
  void unlock() { taken_.store(false, std::memory_order_release); }

 private:
  void wait();
  std::atomic<bool> taken_{false};
};

class alignas(64) Front {
 public:
  // Which of the blocks that are freed it keeps.
  enum class Keeps : std::uint8_t { kNone, kSmall, kAll };
  static constexpr Bytes kSmall = Bytes{64} << 10;

  // Without the arena's lock. What is not done has to be done with it.
  struct Taken {
    Block* block = nullptr;
    bool has_none = false;  // of that size: no need to try again
  };
  Taken take(StreamKey stream, Bytes size, Bytes rounded, Line line, Tally& tally);
  bool give(Block& block, Tally& tally);

  // The rest is for those who hold the arena's lock, and with it this one's.
  explicit Front(StreamIndex index) : index_(index) {}
  SpinLock& lock() { return lock_; }
  StreamIndex index() const { return index_; }
  bool serves(StreamKey stream) const {  // also without a lock: then it may not be true any more
    return handle_.load(std::memory_order_relaxed) == stream.stream &&
           thread_.load(std::memory_order_relaxed) == stream.thread;
  }
  void serve(StreamKey stream);  // another one from now on; nobody, if it is the key that is made of nothing
  void set_policy(bool direct, Keeps keeps) {
    direct_ = direct;
    keeps_ = keeps;
    set_awake();
  }
  bool would_keep(const Block& block) const {
    return block.ordinary && handle_.load(std::memory_order_relaxed) != nullptr &&
           (keeps_ == Keeps::kAll || (keeps_ == Keeps::kSmall && block.size <= kSmall));
  }

  Block* pop(Bytes rounded);
  enum class Push { kKept, kFull, kRefused };
  Push push(Block& block);  // which would_keep()
  bool is_empty() const { return kept_ == 0; }
  template <typename Visit>
  void pop_all(Visit visit) {
    for (Bin& bin : bins_) {
      while (bin.first != nullptr) visit(*std::exchange(bin.first, bin.first->next));
    }
    kept_ = 0;
    set_awake();
  }
  template <typename Visit>
  void each_kept(Visit visit) const {
    for (const Bin& bin : bins_) {
      for (Block* block = bin.first; block != nullptr; block = block->next) visit(*block);
    }
  }

  // A block that was popped, or is new, comes into a user's hands, counted already.
  void start(Block& block, Bytes requested, std::uint64_t serial, Line line);

  std::uint64_t hits() const { return hits_; }
  std::uint64_t allocations() const { return allocations_; }

  // Numbers for allocations that are its own: [next, end).
  struct Serials {
    std::uint64_t next = 0, end = 0;
  };
  Serials& serials() { return serials_; }

 private:
  struct Bin {
    Bytes size = 0;
    Block* first = nullptr;
  };
  static constexpr std::size_t kBins = 64, kProbes = 4;
  static constexpr std::uint32_t kMost = 128;  // blocks that are kept
  // Where sizes seldom come twice, keeping blocks is work for nothing: after so many in vain none is kept for a while, or
  // until the size that was freed last is asked for.
  static constexpr std::uint32_t kInVain = 256, kPause = 2048, kWorth = 3;

  template <typename Fits>
  Bin* find(Bytes size, const Fits& fits);
  void set_awake() { awake_.store(direct_ && (pause_ == 0 || kept_ > 0), std::memory_order_relaxed); }

  const StreamIndex index_;
  std::atomic<bool> awake_{false};  // whether it is worth a try without the arena's lock
  SpinLock lock_;
  bool direct_ = false;
  Keeps keeps_ = Keeps::kNone;
  std::uint32_t kept_ = 0;
  std::uint32_t in_vain_ = 0;  // pushed, less what was popped, each worth some
  std::uint32_t pause_ = 0;    // blocks that are not kept from now on
  Bytes refused_ = 0;          // the size of the last that was not
  std::atomic<cu::Stream> handle_{nullptr};
  std::atomic<std::uint64_t> thread_{0};
  std::uint64_t hits_ = 0, allocations_ = 0;
  Serials serials_;
  std::array<Bin, kBins> bins_;
};

// The fronts of all streams of an arena. All but find() is for those who hold the arena's lock.
class Fronts {
 public:
  // The front of a stream, most likely; it looks for itself whether it is. Null if there is none.
  Front* find(StreamKey stream) const;
  // The front of a stream, made if there is none, with its new stream if the index was another's before.
  Front& of(StreamIndex index, StreamKey stream);
  // A stream is gone: its front takes and gives no more, until it serves another.
  void forget(StreamIndex index);

  // One of them locked, if anybody may come without the arena's lock.
  class Guard {
   public:
    Guard(const Fronts& fronts, Front& front) : front_(fronts.direct_ ? &front : nullptr) {
      if (front_ != nullptr) front_->lock().lock();
    }
    ~Guard() {
      if (front_ != nullptr) front_->lock().unlock();
    }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    Front* front_;
  };
  // All of them locked.
  class Held {
   public:
    explicit Held(const Fronts& fronts) : fronts_(fronts) {
      for (const auto& front : fronts_.all_) front->lock().lock();
    }
    ~Held() {
      for (const auto& front : fronts_.all_) front->lock().unlock();
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

   private:
    const Fronts& fronts_;
  };

  template <typename Visit>
  void each(Visit visit) const {
    for (const auto& front : all_) visit(*front);
  }
  void set_policy(bool direct, Front::Keeps keeps);

  // A number for an allocation of a front; numbers for its next ones go to the front itself, `many` of them.
  std::uint64_t next_serial(Front& front, std::uint64_t many);
  // The number from which on all that follow are. With all of them locked.
  std::uint64_t begin_serials();

 private:
  static constexpr std::size_t kSlots = 256, kProbes = 4;

  static std::size_t home(StreamKey stream);
  void publish(Front& front, StreamKey stream);

  std::vector<std::unique_ptr<Front>> all_;  // by the index of the stream
  std::array<std::atomic<Front*>, kSlots> slots_{};
  bool direct_ = false;
  Front::Keeps keeps_ = Front::Keeps::kNone;
  std::uint64_t serials_ = 0;
};

}  // namespace arena
