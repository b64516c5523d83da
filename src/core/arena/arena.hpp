// The arena: the heap under one lock, and the public interface of the core. For the common pair of calls each stream's cache
// has a lock of its own (blocks/stream_cache.hpp).
//
// The lock is not held while the device is waited for, except before live data is moved, where no other thread may interfere.
// It is never held while Python runs. After a fork the child's calls throw UsageError, but for free(), which does nothing
// there.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/blocks/blocks.hpp"
#include "core/heap/account.hpp"
#include "core/heap/heap.hpp"
#include "core/locks.hpp"
#include "core/scopes/graphs.hpp"
#include "core/scopes/scopes.hpp"
#include "core/types.hpp"
#include "driver/device.hpp"

namespace arena {

// Fits into two registers.
struct AllocateOptions {
  // Called right before live data is moved, if that is allowed: whether the device is still idle. Null: no need to check.
  const QuiescenceCheck* is_quiescent = nullptr;
  Line line = 0;
  // Allowed only by callers who know that no thread gives the device work meanwhile.
  Moving moving = Moving::kForbidden;
  bool is_last = true;  // if the request fails, the caller does not try again: it counts as a failure
};

class Arena {
 public:
  Arena(std::shared_ptr<const Driver> driver, int device, ArenaSettings settings);
  // Waits for the device, and gives everything back, blocks included.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // A new block, which is the caller's until it is freed. Throws OutOfMemory. The stream must live until the call returns; it
  // is not used afterwards, unless it is kept.
  Block& allocate(Bytes size, cu::Stream stream, AllocateOptions options = {});
  void free(Block& block);
  // Throws UsageError for an address that is not a live block's.
  void free(std::uint64_t address);
  // The same where neither the lock nor the driver has to be waited for; otherwise null and false.
  Block* try_allocate(Bytes size, cu::Stream stream, Line line = 0);
  // Only if the stream is kept, and by this owner.
  Block* try_allocate(Bytes size, cu::Stream stream, const void* owner, Line line);
  bool try_free(Block& block);
  // The live block at an address. Throws UsageError if there is none.
  Block& find(std::uint64_t address);

  // Keeps the owner of a stream until everything that was freed on the stream is done; without an owner the stream lives for
  // ever. Requests on it are then met without asking the driver which stream it is.
  void keep_stream(cu::Stream stream, std::shared_ptr<void> owner);
  // The block is also used by this stream: its memory is not reused before the stream has passed the point where it is when
  // the block is freed.
  void record_stream(std::uint64_t address, cu::Stream stream);
  // A pinned block keeps its physical memory. It may be pinned several times.
  void pin(std::uint64_t address);
  void unpin(std::uint64_t address);

  // What this thread allocates until end_graph() belongs to a graph that is being captured, which keeps it until its memory
  // is released. What is allocated in a capture without a graph is kept until release_graphs().
  std::shared_ptr<GraphMemory> begin_graph();
  void end_graph(GraphMemory& graph);
  void release_graph(GraphMemory& graph);
  void release_graphs();
  // A scope for what this thread allocates from now on; and its end.
  std::shared_ptr<Scope> begin_scope(const std::string& name, std::optional<Bytes> budget);
  void end_scope(Scope& scope);
  std::map<std::string, ScopeTotals> scope_totals() const;  // of all scopes so far, by path
  // Sets the observer (or null) and returns the previous one.
  std::shared_ptr<Observer> observe(std::shared_ptr<Observer> observer);
  // Sets the watch (or null). While there is one, every allocation and free takes the arena's lock.
  void watch(std::shared_ptr<Watch> watch);
  void update_watch();  // up to this moment

  // Allocates no more. Live blocks stay until they are freed; everything else is given back, now or then.
  void close();
  // Gives back what is free, but for what is reserved.
  void trim();
  // trim() keeps it from now on. Moves nothing; the error of a request that fails says what moving would have given.
  void reserve(Bytes size, Moving moving = Moving::kAllowed);
  void set_cap(Bytes cap);
  // Waits for all work of the device, unless a stream is being captured, which that would break. For callers who are about to
  // allocate with moving, and must not wait then.
  void synchronize();

  // Whether live data may be moved when nothing else helps, as far as is known. If not, memory is laid out to do without,
  // which takes more driver calls.
  void expect_moving(Moving moving) { heap_.moves.store(moving == Moving::kAllowed, std::memory_order_relaxed); }
  bool is_compactable();  // whether a request could gain anything by moving live data
  // Moves live data until every handle that is in use is touched everywhere, and trims. Throws UsageError if the device is
  // not quiescent any more.
  void compact(const QuiescenceCheck& is_quiescent = {});
  // Moves live data, for a caller who knows that no thread launches work now, until the time is up: later requests find room
  // without that. Does nothing unless memory is scarce and much of it is stranded, a request failed because data could not be
  // moved for it, or the last safe point ran out of time. Returns the bytes set free.
  Bytes safe_point(std::chrono::nanoseconds budget);
  bool needs_safe_point();  // quick, without the driver

  const Device& device() const { return heap_.device; }
  std::uint64_t id() const { return heap_.id; }  // never used twice
  bool is_plain() const { return heap_.is_plain; }
  bool validates() const { return heap_.settings.validates; }
  bool is_inherited() const;       // by a forked child
  Bytes addresses() const;         // reserved for virtual memory
  std::vector<int> peers() const;  // that have access to virtual memory
  bool rdma() const;               // whether memory is created for GPUDirect RDMA
  std::string remark() const;      // what is unusual on this device, and why; empty if nothing
  Bytes reserved() const;
  Bytes live() const;
  Bytes cap() const;
  // Asks the driver nothing: what the device has left is known from the last time, corrected by what the arena took and gave
  // back since. `largest` is by the rule for moving.
  Stats stats(Moving moving = Moving::kAllowed);
  std::optional<Stats> try_stats(Moving moving);  // without waiting for the lock
  // After asking the driver how much the device has left, and the streams what they have done.
  Stats stats_after_asking(Moving moving);
  Snapshot snapshot(Moving moving = Moving::kAllowed);
  void validate() const;  // throws Error that says what is wrong

 private:
  enum class When { kOpen, kAlways };

  void check_process() const;
  Lock lock(When when = When::kOpen) const;

  // The common way: a stream's cache, without the lock.
  Lookup look_up(Bytes size, cu::Stream stream, Line line) const;
  [[gnu::noinline]] Lookup look_up_stream(Bytes size, cu::Stream stream, Line line) const;
  bool is_in_scope() const;
  Block* take_from_cache(const Lookup& lookup);
  bool give_to_cache(Block& block);
  // The rest of allocate() and free(), in functions of their own: the common way is short.
  [[gnu::noinline]] Block& allocate_with_lock(const Lookup& lookup, AllocateOptions options);
  [[gnu::noinline]] Block* try_allocate_with_lock(const Lookup& lookup);
  [[gnu::noinline]] void free_with_lock(Block& block);
  [[gnu::noinline]] bool try_free_with_lock(Block& block);

  Request request(const Lookup& lookup, AllocateOptions options);
  void note_capture(Request& request);
  Block& block_at(std::uint64_t address);
  void reserve(Bytes size, Moving moving, Lock& lock);
  [[gnu::noinline]] void drop_idle_streams(Lock& lock);

  const std::uint32_t forks_when_made_;
  Heap heap_;
  mutable Mutex mutex_{heap_.is_flushed, [this] { heap_.restore_after_inspection(); }};
  std::uint64_t scopes_ = 0;
  ScopePaths scope_paths_;
};

}  // namespace arena
