// The arena: the heap under one lock, and the public interface of the core. On the fast path, each stream's cache has a
// lock of its own (blocks/stream_cache.hpp).
//
// The lock is not held while waiting for the device, except before live data is moved, when no other thread may
// interfere. It is never held while Python runs. In a forked child all calls throw UsageError, except free(), which
// does nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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

class Arena {
 public:
  Arena(std::shared_ptr<const Driver> driver, int device, ArenaSettings settings);
  // Waits for the device and releases everything, including live blocks.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Throws OutOfMemory.
  Block& allocate(const Request& request);
  Block& allocate(Bytes size, cu::Stream stream) { return allocate({.size = size, .stream = stream}); }
  void free(Block& block);
  // Throws UsageError for an address that is not a live block's.
  void free(std::uint64_t address);
  // The same if that needs no waiting, neither for the lock nor for the driver; otherwise null and false.
  Block* try_allocate(Bytes size, cu::Stream stream, Line line = 0);
  // Only if the stream is kept through this owner.
  Block* try_allocate(Bytes size, cu::Stream stream, const void* owner, Line line);
  bool try_free(Block& block);
  // The live block at an address. Throws UsageError if there is none.
  Block& find(std::uint64_t address);
  // The start of the live block that an address lies in; none if there is no such block. Walks all blocks, unless it is the
  // start itself.
  std::optional<std::uint64_t> find_around(std::uint64_t address);

  // Keeps the owner of a stream until everything freed on the stream is done; a null owner means that the stream lives
  // forever. Requests on it then need not ask the driver which stream it is.
  void keep_stream(cu::Stream stream, std::shared_ptr<void> owner);
  // The block is also used by this stream: its memory is not reused before the stream has done the work that it had
  // when the block was freed.
  void record_stream(std::uint64_t address, cu::Stream stream);
  // The same for a default stream of an unknown device: then all work of every other device in use counts.
  void record_default_streams(std::uint64_t address, cu::Stream stream);
  // A pinned block keeps its physical memory. It may be pinned several times.
  void pin(std::uint64_t address);
  void unpin(std::uint64_t address);

  // Until end_graph(), this thread allocates for a graph that is being captured. The graph keeps the memory until it is
  // released. Memory allocated in a capture without a graph is kept until release_graphs().
  //
  // With the memory of an earlier graph, which this takes over: the two are never launched at the same time.
  std::shared_ptr<GraphMemory> begin_graph(GraphMemory* earlier = nullptr);
  void end_graph(GraphMemory& graph);
  void release_graph(GraphMemory& graph);
  void release_graphs();
  // The live blocks of a graph.
  struct GraphBlock {
    std::uint64_t address = 0;
    Offset offset = 0;
    Bytes size = 0, requested = 0;
    StreamIndex stream = 0;
    cu::Stream cu_stream = nullptr;
    std::uint64_t capture = 0;
    Line line = 0;
  };
  std::vector<GraphBlock> live_in(const GraphMemory& graph);
  // What the graph has, as addresses and sizes.
  std::vector<std::pair<std::uint64_t, Bytes>> ranges_of(const GraphMemory& graph);
  // Makes a block that the graph had live again, at its address. Throws UsageError if something else is there.
  Block& revive(const std::shared_ptr<GraphMemory>& graph, const GraphBlock& block);
  // A scope for the allocations of this thread from now on.
  std::shared_ptr<Scope> begin_scope(const std::string& name, std::optional<Bytes> budget);
  void end_scope(Scope& scope);
  std::map<std::string, ScopeTotals> scope_totals() const;  // of all scopes so far, by path
  // Sets the observer (or null) and returns the previous one.
  std::shared_ptr<Observer> observe(std::shared_ptr<Observer> observer);
  // Sets the watch (or null). While there is one, every allocation and free takes the arena's lock.
  void watch(std::shared_ptr<Watch> watch);
  void update_watch();  // samples now

  // No more allocations. Live blocks stay until they are freed; everything else is released now, or when it becomes
  // idle.
  void close();
  // Releases free memory, down to what reserve() asked for.
  void trim();
  // Takes memory in advance, and trim() keeps it from now on. Moves nothing; `moving` only decides what the error of a
  // failed call says.
  void reserve(Bytes size, Moving moving = Moving::kAllowed);
  void set_cap(Bytes cap);
  // Waits for all work of the device, unless a stream is being captured, which that would invalidate. For callers that
  // are about to allocate with moving, and must not wait then.
  void synchronize();

  // Whether to expect that live data may be moved if nothing else helps. If not, memory is laid out to do without
  // moving, which takes more driver calls.
  void expect_moving(Moving moving) { heap_.moves.store(moving == Moving::kAllowed, std::memory_order_relaxed); }
  bool is_compactable();  // whether a request could gain anything by moving live data
  // Moves live data until handles in use have no untouched granules, and trims. Throws UsageError if the device is not
  // quiescent any more.
  void compact(const QuiescenceCheck& is_quiescent = {});
  // Moves live data until the time is up, so that later requests need not. The caller knows that no thread launches
  // work. Does nothing unless memory is scarce and much of it is stranded, a request failed because data could not be
  // moved, or the last safe point ran out of time. Returns the bytes freed.
  Bytes safe_point(std::chrono::nanoseconds budget);
  bool needs_safe_point();  // quick, without the driver

  const Device& device() const { return heap_.device; }
  std::uint64_t id() const { return heap_.id; }  // never reused
  bool is_plain() const { return heap_.is_plain; }
  bool validates() const { return heap_.settings.validates; }
  bool is_inherited() const;       // by a forked child
  Bytes addresses() const;         // reserved for virtual memory
  std::vector<int> peers() const;  // devices that have access to virtual memory
  bool rdma() const;               // whether memory is created for GPUDirect RDMA
  std::string remark() const;      // what is unusual on this device, and why; otherwise empty
  Bytes reserved() const;
  struct Reserved {
    Bytes now = 0, peak = 0;
    Bytes returned = 0;                                // to the driver, so far
    std::uint64_t mappings = 0, mappings_at_peak = 0;  // of handles
  };
  Reserved reserved_and_peak() const;
  Bytes live() const;
  Bytes cap() const;
  // Does not call the driver: `device_free` is the last answer, corrected by what the arena took and released since.
  // `moving` decides `largest`.
  Stats stats(Moving moving = Moving::kAllowed);
  std::optional<Stats> try_stats(Moving moving);  // without waiting for the lock
  // Asks the driver how much the device has left, and polls the streams.
  Stats stats_after_asking(Moving moving);
  // Starts the peaks in the account again, from what is live and reserved now.
  void reset_peaks();
  Highest highest() const;  // since the beginning, whether or not peaks were reset
  Snapshot snapshot(Moving moving = Moving::kAllowed);
  void validate() const;  // throws an Error that says what is wrong

 private:
  enum class When { kOpen, kAlways };

  void check_process() const;
  Lock lock(When when = When::kOpen) const;

  // The fast path: a stream's cache, without the lock.
  Lookup look_up(Bytes size, cu::Stream stream) const;
  [[gnu::noinline]] Lookup look_up_stream(Bytes size, cu::Stream stream) const;
  bool is_in_scope() const;
  [[gnu::always_inline]] Block* take_from_cache(StreamCache& cache, StreamCache::Bin* bin, StreamKey key, Bytes size,
                                                Bytes rounded, Line line);
  [[gnu::always_inline]] bool give_to_cache(Block& block);
  // The slow path, in functions of its own to keep the fast path short.
  [[gnu::noinline]] Block& allocate_with_lock(const Request& request, const Lookup& lookup);
  [[gnu::noinline]] Block* try_allocate_on(cu::Stream stream, Bytes size, Line line);
  [[gnu::noinline]] Block* try_allocate_with_lock(const Request& request, const Lookup& lookup);
  [[gnu::noinline]] void free_with_lock(Block& block);
  [[gnu::noinline]] bool try_free_with_lock(Block& block);
  void give(Block& block, Lock& held);
  void record_use(Block& block, StreamIndex index);
  bool waits_when_freed(const Block& block) const;

  HeapRequest resolve(const Request& request, const Lookup& lookup);
  void note_capture(HeapRequest& request);
  Block& block_at(std::uint64_t address);
  void reserve(Bytes size, Moving moving, Lock& lock);
  [[gnu::noinline]] void drop_idle_streams(Lock& lock);

  const std::uint32_t forks_at_creation_;
  Heap heap_;
  mutable Mutex mutex_{heap_.is_flushed, [this] { heap_.restore_after_inspection(); }};
  std::uint64_t scopes_ = 0;
  ScopePaths scope_paths_;
};

}  // namespace arena
