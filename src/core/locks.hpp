// The locks of an arena. Lock order: the arena's lock, then caches' locks by stream index.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <utility>

namespace arena {

// The arena's mutex. Inspection may leave the arena changed (`needs_restore`), and the next lock restores it.
class Mutex {
 public:
  Mutex(const bool& needs_restore, std::function<void()> restore)
      : needs_restore_(needs_restore), restore_(std::move(restore)) {}
  void lock() {
    mutex_.lock();
    if (needs_restore_) restore_();
  }
  bool try_lock() {
    if (!mutex_.try_lock()) return false;
    if (needs_restore_) restore_();
    return true;
  }
  void unlock() { mutex_.unlock(); }
  std::mutex& for_inspection() { return mutex_; }

 private:
  std::mutex mutex_;
  const bool& needs_restore_;
  std::function<void()> restore_;
};

using Lock = std::unique_lock<Mutex>;  // of the arena

// Releases the lock for a while: other threads may change the arena.
class Unlocked {
 public:
  explicit Unlocked(Lock& lock) : lock_(lock) { lock_.unlock(); }
  ~Unlocked() { lock_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  Lock& lock_;
};

// Held for nanoseconds, or for microseconds while all caches are inspected.
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

// Written with a lock held. Also read without it, as a hint whether the lock is worth taking.
template <typename T>
class RelaxedAtomic {
 public:
  explicit RelaxedAtomic(T value) : value_(value) {}
  operator T() const { return value_.load(std::memory_order_relaxed); }
  RelaxedAtomic& operator=(T value) {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }

 private:
  std::atomic<T> value_;
};

}  // namespace arena
