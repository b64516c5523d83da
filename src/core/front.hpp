// The way of the common pair of calls: a block that was freed is kept by the front of its stream, and handed out again
// for the next request of exactly its size, with no more than the front's own lock. Nobody else needs to be asked:
//
//   - The stream is the same, so there is nothing to wait for.
//   - The block stays where it was, so no granule is touched, nothing is taken from the driver, and no cap is passed.
//   - What is in users' hands is counted by each thread for itself (tally.hpp).
//
// What is kept is free. The arena puts it down, among the gaps, before it asks the driver for more, and before it touches a
// new granule, if it is large or the cap is near; and when somebody looks, after which it picks it up again: the same requests meet the same
// arena, whoever looks, and however often.
//
// The arena's lock is taken before a front's, and several fronts' in the order of their streams.
#pragma once

#include <array>
#include <atomic>
#include <bit>
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
  [[gnu::always_inline]] void lock() {
    while (!try_lock()) wait();
  }
  void unlock() { taken_.store(false, std::memory_order_release); }

 private:
  void wait();
  std::atomic<bool> taken_{false};
};

// Written with a lock, and read also by those who only glance whether it is worth taking.
template <typename T>
class Glanced {
 public:
  explicit Glanced(T value) : value_(value) {}
  operator T() const { return value_.load(std::memory_order_relaxed); }
  Glanced& operator=(T value) {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }

 private:
  std::atomic<T> value_;
};

// Sizes that come again are learnt: a bin remembers a size that was asked for, and how often it was of late. The first
// block of a size that is freed is not kept, and those that nobody ever asks for again cost next to nothing.
class alignas(64) Front {
 public:
  // Which of the blocks that are freed it keeps.
  enum class Keeps : std::uint8_t { kNone, kSmall, kAll };
  static constexpr Bytes kSmall = Bytes{64} << 10;

  // Without the arena's lock. What is not done has to be done with it.
  Block* take(StreamKey stream, Bytes size, Bytes rounded, Line line, Tally& tally);
  bool give(Block& block, Tally& tally);
  // Whether it is worth a try: a glance.
  bool seems_to_have(Bytes rounded) const {
    const Bin* bin = find(rounded);
    return bin != nullptr && bin->first != nullptr;
  }
  bool seems_to_want(Bytes rounded) const {
    const Bin* bin = find(rounded);
    return bin != nullptr && bin->worth > 0;
  }

  // The rest is for those who hold the arena's lock, and with it this one's.
  explicit Front(StreamIndex index) : index_(index) {}
  SpinLock& lock() { return lock_; }
  StreamIndex index() const { return index_; }
  bool serves(StreamKey stream) const {  // also without a lock: then it may not be true any more
    return handle_ == stream.stream && tag_ == stream.tag;
  }
  // Whether the stream is kept by this owner. Also without a lock: an owner that is alive, and was kept a moment ago, still
  // has the same stream.
  bool is_owned_by(const void* owner) const { return owner_ == owner; }
  // Another stream from now on, and what is kept for it; nobody, if it is the key that is made of nothing.
  void serve(StreamKey stream, const void* owner = nullptr);
  // What is kept from now on is freed before the mark of this number. To be set before an event is recorded that covers
  // lower ones: what is freed at the same moment, in another thread, then either has a higher one or is covered.
  void set_mark(std::uint64_t number) { mark_.store(number); }
  void set_policy(bool direct, Keeps keeps) {
    direct_ = direct;
    keeps_ = keeps;
  }
  bool would_keep(Bytes rounded) const {
    return keeps_ == Keeps::kAll || (keeps_ == Keeps::kSmall && rounded <= kSmall);
  }
  bool would_keep(const Block& block) const { return block.ordinary && handle_ != nullptr && would_keep(block.size); }

  Block* pop(Bytes rounded);
  // A size was asked for of which there is none. Returns blocks, if there are any, that it keeps no more.
  Block* miss(Bytes rounded);
  enum class Push { kKept, kFull, kRefused };
  Push push(Block& block);  // which would_keep()
  bool is_empty() const { return kept_ == 0; }
  bool has_large() const { return large_ > 0; }
  // Takes all that it keeps, or all that is not small, and trusts less in the sizes of those that nobody asked for.
  enum class Which { kAll, kLarge };
  template <typename Visit>
  void pop_all(Which which, Visit visit) {
    for (Bin& bin : bins_) {
      if (bin.first == nullptr || (which == Which::kLarge && bin.size <= kSmall)) continue;
      bin.worth = bin.worth / 2;
      for (Block* block = drop(bin); block != nullptr;) visit(*std::exchange(block, block->next));
    }
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
    Glanced<Bytes> size{0};
    Glanced<Block*> first{nullptr};
    Glanced<std::uint32_t> worth{0};  // asked for again and again: up to kMostWorth
  };
  static constexpr std::size_t kBins = 128, kProbes = 4;  // a size is in one of those that begin where its hash says
  static constexpr std::uint32_t kMost = 256;             // blocks that are kept
  static constexpr std::uint32_t kMostWorth = 4;

  static std::size_t hash(Bytes size) {
    return static_cast<std::size_t>(size / kAlignment * 0x9E3779B97F4A7C15u >> (64 - std::bit_width(kBins - 1)));
  }
  const Bin* find(Bytes size) const {
    const Bin* bin = &bins_[hash(size)];
    for (const Bin* end = bin + kProbes; bin != end; ++bin) {
      if (bin->size == size) return bin;
    }
    return nullptr;
  }
  Block* drop(Bin& bin);
  void count(const Block& block, int more) {
    kept_ += static_cast<std::uint32_t>(more);
    if (block.size > kSmall) large_ += static_cast<std::uint32_t>(more);
  }
  Bin* find(Bytes size) { return const_cast<Bin*>(std::as_const(*this).find(size)); }

  const StreamIndex index_;
  Glanced<bool> direct_{false};  // whether it may be used without the arena's lock
  SpinLock lock_;
  std::atomic<std::uint64_t> mark_{1};
  Keeps keeps_ = Keeps::kNone;
  std::uint32_t kept_ = 0, large_ = 0;  // of the first, those that are not small
  Glanced<cu::Stream> handle_{nullptr};
  Glanced<std::uint64_t> tag_{0};
  std::uint64_t hits_ = 0, allocations_ = 0;
  Serials serials_;
  Glanced<const void*> owner_{nullptr};  // of its stream, while the arena keeps it
  std::array<Bin, kBins + kProbes - 1> bins_;
};

// The fronts of the streams of an arena. All but find() is for those who hold the arena's lock.
//
// At most kMost streams have one of their own: a request that needs more memory looks at all of them. The others share
// one that keeps nothing.
class Fronts {
 public:
  static constexpr StreamIndex kMost = 128;

  // The front of a stream, most likely; it looks for itself whether it is. Null if there is none.
  Front* find(StreamKey stream) const;
  // The front of a stream, made if there is none, with its new stream if the index was another's before. What it keeps is
  // freed before the mark.
  Front& of(StreamIndex index, StreamKey stream, std::uint64_t mark, const void* owner = nullptr);
  // A stream is gone: its front takes and gives no more, until it serves another.
  void forget(StreamIndex index);
  void set_mark(StreamIndex index, std::uint64_t number) {
    if (index < all_.size()) all_[index]->set_mark(number);
  }

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
    visit(none_);
  }
  template <typename Visit>
  void each(Visit visit) {
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
  Front none_{kMost};                        // of the streams that have none of their own
  std::array<std::atomic<Front*>, kSlots> slots_{};
  bool direct_ = false;
  Front::Keeps keeps_ = Front::Keeps::kNone;
  std::uint64_t serials_ = 0;
};

}  // namespace arena
