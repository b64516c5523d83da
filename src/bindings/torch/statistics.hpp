// What PyTorch has allocated, for its own questions about memory: exact sums, peaks and totals for each device. Other
// frameworks that share the arena do not count.
//
// PyTorch distinguishes small requests from large ones, and counts each kind and both together.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "core/types.hpp"

namespace arena::torch {

inline constexpr std::size_t kDevices = 64;
inline constexpr Bytes kLargestSmall = Bytes{1} << 20;  // PyTorch's limit

// A figure with its peak, and how much was added and taken away since the last reset. Read without the lock.
class Figure {
 public:
  void add(std::uint64_t amount) {
    set(allocated_, get(allocated_) + amount);
    const std::uint64_t now = get(current_) + amount;
    set(current_, now);
    if (now > get(peak_)) set(peak_, now);
  }
  void remove(std::uint64_t amount) {
    set(freed_, get(freed_) + amount);
    set(current_, get(current_) - amount);
  }
  void reset_peak() { set(peak_, current()); }
  void reset_totals() {
    set(allocated_, 0);
    set(freed_, 0);
  }
  std::uint64_t current() const { return get(current_); }
  std::uint64_t peak() const { return get(peak_); }
  std::uint64_t allocated() const { return get(allocated_); }
  std::uint64_t freed() const { return get(freed_); }

 private:
  using Value = std::atomic<std::uint64_t>;
  static std::uint64_t get(const Value& value) { return value.load(std::memory_order_relaxed); }
  static void set(Value& value, std::uint64_t to) { value.store(to, std::memory_order_relaxed); }
  Value current_ = 0, peak_ = 0, allocated_ = 0, freed_ = 0;
};

// One kind of requests.
struct Figures {
  Figure bytes;      // of blocks, so rounded up
  Figure requested;  // bytes
  Figure count;
  void add(Bytes size, Bytes asked) {
    bytes.add(size);
    requested.add(asked);
    count.add(1);
  }
  void remove(Bytes size, Bytes asked) {
    bytes.remove(size);
    requested.remove(asked);
    count.remove(1);
  }
  template <typename Change>
  void each(Change change) {
    for (Figure* figure : {&bytes, &requested, &count}) change(*figure);
  }
};

class Statistics {
 public:
  enum Kind { kAll, kLarge, kSmall, kKinds };

  void add(Bytes size, Bytes asked) {
    const Held held(*this);
    figures_[kAll].add(size, asked);
    figures_[kind_of(size)].add(size, asked);
  }
  void remove(Bytes size, Bytes asked) {
    const Held held(*this);
    figures_[kAll].remove(size, asked);
    figures_[kind_of(size)].remove(size, asked);
  }
  void add_failure() { failures_.fetch_add(1, std::memory_order_relaxed); }
  void reset_peaks();
  void reset_totals();

  const Figures& of(Kind kind) const { return figures_[kind]; }
  std::uint64_t failures() const { return failures_.load(std::memory_order_relaxed); }

 private:
  // A few instructions run with it, so a thread that finds it taken spins.
  class Held {
   public:
    explicit Held(Statistics& its) : its_(its) {
      while (its_.locked_.exchange(true, std::memory_order_acquire)) its_.wait();
    }
    ~Held() { its_.locked_.store(false, std::memory_order_release); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

   private:
    Statistics& its_;
  };
  static Kind kind_of(Bytes size) { return size <= kLargestSmall ? kSmall : kLarge; }
  [[gnu::noinline]] void wait() const;

  alignas(64) std::atomic<bool> locked_ = false;
  std::array<Figures, kKinds> figures_;
  std::atomic<std::uint64_t> failures_ = 0;
};

// Of a device.
Statistics& statistics_of(int device);

}  // namespace arena::torch
