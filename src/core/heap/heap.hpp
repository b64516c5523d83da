// The heap: owns all parts that memory goes through, and takes and gives blocks.
//
//   a freed block  ->  its stream's cache  ->  (flush)  ->  a gap, on a handle that is idle when no block touches it
//
// Nothing here asks the driver for memory, waits, or takes the arena's lock: the caller holds it. arena/ladder.hpp
// decides what a request does when there is no hit.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/backing/backing.hpp"
#include "core/blocks/blocks.hpp"
#include "core/blocks/stream_cache.hpp"
#include "core/blocks/thread_counters.hpp"
#include "core/heap/account.hpp"
#include "core/heap/emitter.hpp"
#include "core/heap/inspect.hpp"
#include "core/heap/limits.hpp"
#include "core/heap/request.hpp"
#include "core/heap/settings.hpp"
#include "core/heap/watching.hpp"
#include "core/scopes/graphs.hpp"
#include "core/space/gaps.hpp"
#include "core/streams/streams.hpp"

namespace arena {

class Heap {
 public:
  Heap(std::shared_ptr<const Driver> driver, int number, ArenaSettings its_settings, std::uint64_t its_id);

  // A hit, without the driver's help: a block from the stream's cache, or from a backed gap that the stream need not
  // wait for. Null if there is none.
  Block* take(const HeapRequest& request);
  // A block at a backed place in a gap.
  Block& take_at(Offset offset, const HeapRequest& request);
  // A block from memory that the same stream freed in the same capture: the graph runs its work in that order.
  Block* take_from_graph(const HeapRequest& request);
  // The same at a place that the graph's memory has; null if it is not free.
  Block* take_from_graph_at(const HeapRequest& request, Offset offset, std::uint64_t capture);
  // Memory and live blocks of an earlier capture belong to a later one from now on.
  void take_over(GraphMemory& from, const std::shared_ptr<GraphMemory>& to);
  // Frees a block.
  void give(Block& block);
  // The graph will not be launched again: its memory becomes ordinary memory once everything that runs now is done, and
  // its live blocks become ordinary blocks. False if it was released before.
  bool release(GraphMemory& graph);

  // The place for a request that leaves the most for later ones, backed or not.
  std::optional<Place> best_place(Bytes rounded) const;
  bool is_wasteful(const Place& place, Span span) const;  // see Backing; false if data may be moved
  bool must_wait(const HeapRequest& request, Offset offset) const;
  // Whether any stream may use the block.
  bool is_used_by_all(const Block& block) const {
    return !block.others.empty() && block.others.front() == Streams::kAllStreams;
  }

  // From now on no cache accepts the block.
  void make_uncacheable(Block& block);
  // Returns cached blocks to the gaps. False if there were none.
  bool flush_caches(StreamCache::Which which = StreamCache::Which::kAll);
  // The same for an inspection. The blocks return to their caches afterwards, so that inspections do not influence
  // which memory requests get.
  void flush_for_inspection();
  void restore_after_inspection();
  // Call this after a change that decides what caches may keep.
  void update_cache_policy();
  // After a failed re-backing: blocks whose data was lost are no longer counted.
  void drop_lost_blocks();

  Granules cap() const { return backing->count(settings.cap); }
  Bytes reserved() const { return backing->reserved() * backing->granule(); }
  bool is_over_limit() const { return closed || backing->reserved() > cap(); }
  void note_peak() {
    if (reserved() > peak.stats.reserved) set_peak();
  }
  // Starts the peaks again, from what is live and reserved now.
  void restart_peaks();
  // The peaks of live and reserved bytes since the beginning.
  Highest highest() const;
  void emit_reserved();
  void check_if_validating() const {
    if (settings.validates) check(*this);
  }
  // A wait used an event that was recorded on free, so more of them are worth recording.
  void allow_more_records();
  // Switches to plain segments if the error shows that the driver does not support virtual memory after all. That is
  // known before there are any blocks. False if the error means something else.
  bool fall_back(const DriverError& error, Lock& lock);

  const std::uint64_t id;
  Device device;
  ArenaSettings settings;
  Limits limits{device, settings, backing};
  BackingPlan plan;
  std::atomic<bool> is_plain;
  std::atomic<bool> moves;  // see Arena::expect_moving()
  StreamCaches caches;
  PeakTracker tracker{id};
  Streams streams;
  Emitter events{streams};
  std::shared_ptr<Watch> watch;  // null if there is none
  Gaps gaps;
  std::unique_ptr<Backing> backing;
  Blocks blocks;
  std::vector<std::shared_ptr<GraphMemory>> graphs;  // that hold memory
  std::shared_ptr<GraphMemory> unclaimed;            // of captures without a graph of their own; null if there is none
  std::condition_variable_any memory_moved;          // memory in transit has arrived or left
  bool closed = false;
  bool is_flushed = false;    // for inspection: no cache may be used without the lock
  bool wants_moving = false;  // at the next safe point: a request needed it, or the last pass ran out of time
  Peak peak;
  std::uint64_t hits = 0, splits = 0, failures = 0;  // hits: not counting hits without the arena's lock

 private:
  enum class Origin { kNew, kCached };
  // A cached block that was flushed for inspection, and what is needed to restore it.
  struct Flushed {
    Block* block;
    Gaps::Adjacent adjacent;
    Backing::SavedMarks marks;
  };
  static constexpr Offset kNoChunk = ~Offset{0};

  BackingPlan plan_backing() const;
  std::unique_ptr<Backing> make_backing();
  bool is_scarce(Bytes rounded) const;  // memory is scarce for such a request, and data may not be moved
  std::optional<Place> find_hit(const HeapRequest& request) const;
  Block* take_cached(const HeapRequest& request);
  // In a chunk of its graph; without a chunk, at a place that was just taken.
  Block& new_block(Offset offset, const HeapRequest& request, Offset chunk = kNoChunk);
  void start(Block& block, const HeapRequest& request, Origin origin);
  void add_to_graph(Block& block, const HeapRequest& request, Offset chunk);
  bool try_cache(Block& block);
  bool flush_cache(StreamCache& cache, StreamCache::Which which = StreamCache::Which::kAll);
  Mark mark_of(Block& block);
  void return_to_gaps(Block& block);
  [[gnu::noinline]] void return_uncacheable(Block& block);
  void add_gap(const Block& block, const Marks& marks);
  [[gnu::noinline]] void record_contended(const Marks& marks);
  void record_at_once(Mark mark);
  [[gnu::noinline]] void set_peak();
  Highest highest_before_restart_;

  std::vector<Flushed> flushed_;
  bool has_much_room_ = false;  // under the cap and full_at_
  Bytes room_left_ = 0;         // the same in bytes
  Bytes full_at_ = ~Bytes{0};   // how much was reserved when the device last ran out of memory
  int records_left_ = 64;       // events that may still be recorded on free
};

}  // namespace arena
