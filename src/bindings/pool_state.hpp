// What the bindings and Python know of one arena.Arena. There is one PoolState for each, shared by everyone who gives its memory
// out (the arena itself, arena.malloc, PyTorch's functions) and by the blocks: what changes in it changes for all of them.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <utility>

#include "core/arena/arena.hpp"

namespace arena {

// Which requests an arena's on_pressure() functions watch. allocate() counts kMisses as kAll.
enum class Watched : std::uint8_t { kNone, kMisses, kAll };

// When an on_pressure() function is due: a figure passed a share of the cap; once, or again after it was below a lower share. The
// function itself stays in Python, where the garbage collector sees it. Any thread may ask, without the GIL.
class PressureGauge {
 public:
  enum class Figure : std::uint8_t { kReserved, kLive };
  PressureGauge(double share, Figure of, std::optional<double> rearm) : share_(share), of_(of), rearm_(rearm) {}

  Figure figure() const { return of_; }
  // Notices that the figure has fallen. Called before it can rise, so that a short dip counts.
  void rearm_if_low(const Arena& core);
  bool is_due(const Arena& core) const;
  // Whether it is due: true for only one thread, and not again before end(). The caller calls the function then.
  bool begin(const Arena& core);
  void end() { state_ = State::kFired; }

 private:
  enum class State : std::uint8_t { kArmed, kCalling, kFired };
  Bytes read(const Arena& core) const { return of_ == Figure::kLive ? core.live() : core.reserved(); }

  const double share_;
  const Figure of_;
  const std::optional<double> rearm_;
  std::atomic<State> state_ = State::kArmed;
};

// Streams that PyTorch passed, and whose life was looked at.
class SeenStreams {
 public:
  bool has(cu::Stream stream) const {
    const std::lock_guard lock(mutex_);
    return streams_.count(stream) != 0;
  }
  void add(cu::Stream stream) {
    const std::lock_guard lock(mutex_);
    streams_.insert(stream);
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_set<cu::Stream> streams_;
};

class PoolState : public std::enable_shared_from_this<PoolState> {
 public:
  struct Options {
    bool is_simulated = false;
    bool is_auto_compact = false;         // compact="auto"
    bool expects_virtual_memory = false;  // warn if the platform refuses it
  };
  PoolState(std::shared_ptr<Arena> arena, const Options& options)
      : core(std::move(arena)),
        device(core->device().number()),
        is_simulated(options.is_simulated),
        is_auto_compact_(options.is_auto_compact),
        expects_virtual_memory_(options.expects_virtual_memory) {}
  ~PoolState();
  PoolState(const PoolState&) = delete;
  PoolState& operator=(const PoolState&) = delete;

  const std::shared_ptr<Arena> core;
  const int device;
  const bool is_simulated;
  SeenStreams torch_streams;

  Watched watched() const { return watched_.load(std::memory_order_relaxed); }
  void add_gauge(std::shared_ptr<PressureGauge> gauge);
  // Around each request that is watched. They take the arena's lock: not with the GIL.
  void rearm_gauges() const;
  bool has_due_gauge() const;

  // Whether the platform refused virtual memory, and Python has to warn of it.
  bool has_platform_warning() const {
    return expects_virtual_memory_.load(std::memory_order_relaxed) && core->is_plain();
  }
  bool expects_virtual_memory() const { return expects_virtual_memory_; }
  // Returns whether it was expected until now.
  bool stop_expecting_virtual_memory() { return expects_virtual_memory_.exchange(false); }
  // Whether a request leaves Python something to do: to warn, or to call a function. Not with the GIL.
  bool has_news() const { return has_platform_warning() || (watched() != Watched::kNone && has_due_gauge()); }

  // Before a miss. Tells the core whether live data may be moved, as far as that is known without inspecting other threads, which
  // takes too long. Needs the GIL.
  void expect_moving();
  // Whether that may have changed: the process has another number of threads than at the last call. Without the GIL.
  bool has_other_threads();

 private:
  struct GaugeNode {
    std::shared_ptr<PressureGauge> gauge;
    GaugeNode* next;
  };

  const bool is_auto_compact_;
  std::atomic<bool> expects_virtual_memory_;
  std::atomic<int> threads_ = -1;  // at the last has_other_threads()
  std::atomic<Watched> watched_ = Watched::kNone;
  std::atomic<GaugeNode*> gauges_ = nullptr;  // only grows, so that it can be read without a lock, also after a fork
#ifndef Py_GIL_DISABLED
  friend class PoolRef;
  std::shared_ptr<PoolState> self_;  // while there is a PoolRef
  std::size_t refs_ = 0;             // counted with the GIL
#endif
};

// What Python's objects hold: a shared_ptr that is counted with the GIL, because counting with atomic operations would take a
// good part of a hit. Without a GIL it is a plain shared_ptr. Every function needs the GIL.
#ifdef Py_GIL_DISABLED
using PoolRef = std::shared_ptr<PoolState>;
#else
class PoolRef {
 public:
  PoolRef() = default;
  PoolRef(const std::shared_ptr<PoolState>& state) : state_(state.get()) {
    if (state_ != nullptr && state_->refs_++ == 0) state_->self_ = state;
  }
  PoolRef(const PoolRef& other) : state_(other.state_) {
    if (state_ != nullptr) ++state_->refs_;
  }
  PoolRef(PoolRef&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  PoolRef& operator=(PoolRef other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~PoolRef() {
    if (state_ != nullptr && --state_->refs_ == 0) drop(state_);
  }
  PoolState* get() const { return state_; }
  PoolState& operator*() const { return *state_; }
  PoolState* operator->() const { return state_; }
  explicit operator bool() const { return state_ != nullptr; }

 private:
  [[gnu::noinline]] static void drop(PoolState* state) {
    const std::shared_ptr<PoolState> last = std::move(state->self_);
  }
  PoolState* state_ = nullptr;
};
#endif

// The state of an arena.Arena. Throws UsageError if it is closed, TypeError if it is no arena.
std::shared_ptr<PoolState> pool_state_of(PyObject* pool);

}  // namespace arena
