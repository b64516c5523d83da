// The arena: blocks, under a cap. One lock, and for the common pair of calls a lock for each stream (front.hpp). It is
// not held while the device is waited for, except where nobody else may come in between: re-backing. It is never held
// while Python runs.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/account.hpp"
#include "core/backing.hpp"
#include "core/blocks.hpp"
#include "core/events.hpp"
#include "core/front.hpp"
#include "core/gaps.hpp"
#include "core/graphs.hpp"
#include "core/plain.hpp"
#include "core/scopes.hpp"
#include "core/start.hpp"
#include "core/streams.hpp"
#include "core/types.hpp"
#include "driver/device.hpp"

namespace arena {

struct ArenaSettings {
  Bytes cap = 0;
  Bytes reserve = 0;
  Bytes headroom = 0;
  Bytes growth = Bytes{64} << 20;
  bool virtual_memory = true;  // if the device has it, and there is no upstream
  Peers peers = {};            // which devices may access the memory besides its own
  bool moves = false;          // see expect_moving()
  bool validates = false;      // after every operation: slow
  PlainSource upstream = {};
};

// Whether it is still so that nobody gives the device work. Called with the arena's lock.
using Still = std::function<bool()>;

// What a request can get at most for reasons of its own: as things are, and if live data could be moved.
struct Passes {
  Bytes now = ~Bytes{0};
  Bytes by_moving = ~Bytes{0};
};

// After a fork the child's calls throw UsageError, but for free(), which does nothing there.
class Arena {
 public:
  Arena(std::shared_ptr<const Driver> driver, int device, ArenaSettings settings);
  // Waits for the device, and gives everything back, blocks included.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // A new block, which is the caller's until it is freed. Throws OutOfMemory. Re-backing moves live data: only for a
  // caller who knows that nobody gives the device work meanwhile; `still` is asked right before whether that is still so.
  // What fails is a failure if it was the last try.
  // The stream must live until the call returns; its handle is not used afterwards, unless the stream is kept.
  Block& allocate(Bytes size, cu::Stream stream, bool may_reback, Line line = 0, bool is_last = true,
                  const Still& still = {});
  // Whether live data may be moved when nothing else helps, as far as is known. If not, memory is laid out to do without,
  // which takes more calls of the driver.
  void expect_moving(bool moves) { moves_.store(moves, std::memory_order_relaxed); }
  void free(Block& block);
  // Throws UsageError for an address that is not a live block's.
  void free(std::uint64_t address);
  // The same where neither the lock nor the driver has to be waited for; otherwise they do nothing, and say so.
  Block* try_allocate(Bytes size, cu::Stream stream, Line line = 0);
  // The same only if the stream is kept, and by this owner.
  Block* try_allocate(Bytes size, cu::Stream stream, const void* owner, Line line);
  bool try_free(Block& block);
  // The live block at an address. Throws UsageError if there is none.
  Block& find(std::uint64_t address);

  // Keeps what owns a stream until all that was freed on the stream is done; without an owner the stream lives for ever.
  // Requests on it are then met without asking the driver which stream it is.
  void keep_stream(cu::Stream stream, std::shared_ptr<void> owner);
  // The block is also used by this stream: its memory is not used for anything else before the stream has passed the
  // point where it will be when the block is freed.
  void record_stream(std::uint64_t address, cu::Stream stream);
  // What backs the block stays the same while it is pinned, which it may be several times.
  void pin(std::uint64_t address);
  void unpin(std::uint64_t address);
  // What this thread allocates from now on belongs to a graph that is being captured, until end(); the graph keeps it
  // until its memory is released. What is allocated in a capture without that is kept until release_graphs().
  std::shared_ptr<GraphMemory> begin_graph();
  void end_graph(GraphMemory& graph);
  void release_graph(GraphMemory& graph);
  void release_graphs();
  // A scope for what this thread allocates from now on; and its end.
  std::shared_ptr<Scope> begin_scope(const std::string& name, std::optional<Bytes> budget);
  void end_scope(Scope& scope);
  // Has every event told to an observer, or to nobody. Returns the one before.
  std::shared_ptr<Observer> observe(std::shared_ptr<Observer> observer);
  // No more allocations. What is live stays until it is freed; all else is given back, now and then.
  void close();

  void trim();
  // Re-backs until every handle that is in use is touched everywhere, and trims. For callers who may re-back.
  void compact(const Still& still = {});  // throws UsageError if it is not so any more
  // Moves live data for a caller who knows that nobody launches work now, until the time is up: later requests find room
  // without that. Does nothing unless memory is scarce and much of it is stranded, a request failed because data could
  // not be moved for it, or the last safe point ran out of time. Returns the bytes set free.
  bool needs_safe_point();  // quick, without the driver
  Bytes safe_point(std::chrono::nanoseconds budget);
  void reserve(Bytes size);  // from now on: trim() keeps it
  // Waits for all work of the device, unless a stream is being captured, which that would break. For callers who are
  // about to allocate with `may_reback`, and must not wait then.
  void synchronize();
  void set_cap(Bytes cap);

  const Device& device() const { return device_; }
  std::uint64_t id() const { return id_; }  // never used twice
  bool is_plain() const { return plain_; }
  Bytes addresses() const;         // reserved for virtual memory
  std::vector<int> peers() const;  // that have access to virtual memory
  bool rdma() const;               // whether memory is created for GPUDirect RDMA
  // What is not as usual on this device, and why; empty if nothing.
  std::string remark() const;
  bool is_compactable();  // whether a request could gain anything by moving live data
  bool validates() const { return settings_.validates; }
  bool is_inherited() const;  // by a forked child
  Bytes reserved() const;
  Bytes cap() const;
  // `largest` is what would pass with moving live data, or without. The driver is asked nothing: what the device has
  // left is known from the last time that it was, corrected by what came and went here since.
  Stats stats(bool may_reback = true);
  std::optional<Stats> try_stats(bool may_reback);  // without waiting for the lock
  // After asking the driver how much the device has left, and the streams what they have done.
  Snapshot snapshot(bool may_reback = true);
  void ask_device();      // how much it has left
  void validate() const;  // throws Error that says what is wrong

 private:
  // What is known without the lock.
  struct Call {
    Bytes size;
    Bytes rounded;
    StreamKey stream;
    Front* front;  // most likely; null if there is none
    Line line;
    bool may_be_kept;                      // a block for it, by its front
    std::optional<std::uint64_t> capture;  // of its stream
  };
  struct Request {
    Bytes size = 0;
    Bytes rounded = 0;
    StreamIndex stream = 0;
    Front* front = nullptr;
    std::shared_ptr<Scope> scope = {};
    std::shared_ptr<GraphMemory> graph = {};  // that it is for
    Line line = 0;
    bool may_reback = false;
    bool may_be_kept = false;
    std::optional<std::uint64_t> capture = {};
    bool is_last = true;             // nobody tries again if it fails
    const Still* still = nullptr;    // before live data is moved; null: nobody has to be asked
    mutable bool has_asked = false;  // the device how much it has left: once is enough
  };
  // A block that its front keeps, put down for those who look.
  struct Laid {
    Block* block;
    Gaps::Met met;
    Backing::MarksUnder marks;
  };
  enum class When { kOpen, kAlways };
  static constexpr Offset kNoChunk = ~Offset{0};
  static constexpr const char* kCapturing = "a stream is being captured";
  static constexpr const char* kNotAllowed = "re-backing not allowed";

  void check_process() const;
  Lock lock(When when = When::kOpen) const;
  void check_still_open(Lock& lock);

  Call call(Bytes size, cu::Stream stream, Line line) const;
  [[gnu::noinline]] Call call_on_stream(Bytes size, cu::Stream stream, Line line) const;
  bool is_in_scope() const;
  Request request(const Call& call, bool may_reback, bool is_last);
  void check_budget(const Request& request, Lock& lock);
  std::optional<Place> best_place(Bytes rounded) const;
  // A place for a request that needs nothing of the driver: the best one, or, while others use that, another.
  std::optional<Place> find_hit(const Request& request) const;
  bool must_wait(const Request& request, Offset offset) const;
  // Whom its memory must be ready for: a graph may be launched in any stream.
  static StreamIndex user_of(const Request& request) { return request.capture ? Streams::kNobody : request.stream; }
  Block* take_directly(const Call& call);
  // The rest of allocate() and free(), apart from them: the common way is short.
  [[gnu::noinline]] Block& allocate_with_lock(const Call& call, bool may_reback, bool is_last, const Still& still);
  [[gnu::noinline]] Block* try_allocate_with_lock(const Call& call);
  [[gnu::noinline]] void free_with_lock(Block& block);
  [[gnu::noinline]] bool try_free_with_lock(Block& block);
  Block* take_kept(const Request& request);
  Block* take_hit(const Request& request);
  Block& allocate_slowly(const Request& request, Lock& lock);
  Block& allocate_or_fail(const Request& request, Lock& lock);
  Block* try_efforts(const Request& request, Lock& lock);
  Block* try_without_moving(Request request, Lock& lock);
  std::optional<Place> find_backed(Bytes rounded) const;
  std::optional<Place> find_unshared(const Request& request) const;
  bool is_wasteful(const Place& place, Span span) const;
  Block* take_lent(const Request& request, Demand demand, const std::function<bool()>& may_unmap, Lock& lock);
  Block* take_shared(const Request& request, const Demand& demand, Lock& lock);
  Block& allocate_in_capture(const Request& request, const Demand& demand, Lock& lock);
  void note_capture(Request& request);
  void answer(StreamIndex stream);
  Block* take_from_graph(const Request& request);
  void give_chunk(Block& block, const Request& request, Offset chunk);
  void give_to_graph(Block& block);
  void release(GraphMemory& graph, Lock& lock);
  std::optional<Offset> back(const Demand& demand, Effort effort, Lock& lock);
  std::optional<Offset> back_anew(const Demand& demand, Lock& lock);
  bool order(const Request& request, Offset offset, Lock& lock);
  Block& hand_out(Offset offset, const Request& request);
  // In a chunk of its graph, or, without one, at a place that was just taken.
  Block& new_block(Offset offset, const Request& request, Offset chunk = kNoChunk);
  void start(Block& block, const Request& request, bool is_new);

  Block& block_at(std::uint64_t address);
  bool give_directly(Block& block);
  void end(Block& block, Lock& lock);
  void take_back(Block& block);
  bool keep(Block& block);
  void bind(Block& block);
  Mark mark_of(Block& block);
  void put_down(Block& block);
  [[gnu::noinline]] void let_go(Block& block);
  void put_among_gaps(const Block& block, const Marks& marks);
  [[gnu::noinline]] void record_contended(const Marks& marks);
  // Puts down what fronts keep. False if there was nothing.
  bool empty_front(Front& front, Front::Which which = Front::Which::kAll);
  bool empty_fronts(Front::Which which = Front::Which::kAll);
  // The same for those who only look: the next who comes for more finds it picked up again.
  void lay_down();
  void pick_up();
  void set_fronts();
  void disown_lost();
  bool is_over_limit() const;
  void trim_to(Bytes keep, Lock& lock, bool may_wait = true);

  bool is_near_cap() const;
  void wait_for_pending(Lock& lock, std::chrono::nanoseconds longest);
  bool wait_for_device(Lock& lock);
  bool wait_until_idle(Lock& lock, std::chrono::steady_clock::time_point deadline);
  bool gains_by_moving() const;
  bool synchronize_now();
  bool synchronize_all(const Streams::Progress& progress) const;
  [[gnu::noinline]] void tidy(Lock& lock);
  std::vector<std::shared_ptr<void>> tidy_streams();

  Granules in_granules(Bytes size) const { return size / backing_->granule(); }
  Granules limit() const;
  Granules limit_with(Bytes device_free) const;
  Granules reach() const;
  Granules reach_with(Bytes device_free) const;
  std::string why_full(Bytes rounded) const;
  // Without a verdict: why_full().
  [[noreturn]] void fail(const Request& request, Lock& lock, std::string verdict = {}, Passes passes = {});
  Bytes taken() const;        // from the device, by now
  Bytes device_free() const;  // as far as is known
  void ask_device(Lock& lock);
  void ask_device(const Request& request, Lock& lock);
  void require_answer(Lock& lock);
  void ask_before_growing(const Request& request, Lock& lock);
  Start start() const;
  std::unique_ptr<Backing> make_backing();
  bool fall_back(const DriverError& error, Lock& lock);
  void reserve(Bytes size, Lock& lock);
  void add_counts(Stats& stats) const;
  Stats counts() const;                  // without what others must be asked for
  Stats figures(bool may_reback) const;  // with it
  void add_segments(Snapshot& snapshot) const;
  void add_pieces(Snapshot& snapshot) const;
  void add_captured(Snapshot& snapshot) const;
  void add_blocks(Snapshot& snapshot) const;
  void note_peak();
  void tell(Event event);
  void tell_reserved();
  void tell_live();
  void check() const;
  void check_if_told() const {
    if (settings_.validates) check();
  }

  bool is_laid_ = false;  // what fronts keep; and no front may be used without the lock
  mutable Mutex mutex_{is_laid_, [this] { pick_up(); }};
  Fronts fronts_;
  std::vector<Laid> laid_;
  bool has_much_room_ = false;         // under the cap, or of what the device had
  Bytes left_ = 0;                     // of the same
  Bytes full_at_ = ~Bytes{0};          // what was reserved when the device last had no more
  std::condition_variable_any moved_;  // memory came or went without the lock
  Device device_;
  ArenaSettings settings_;
  Bytes last_free_ = 0, last_taken_ = 0;  // what the device had left, and was taken here, when it was last asked
  Start start_;
  std::atomic<bool> plain_;
  std::atomic<bool> moves_;
  const std::uint32_t born_;  // forks() then
  const std::uint64_t id_;
  Tallies tallies_{id_};
  Streams streams_;
  Gaps gaps_;
  std::unique_ptr<Backing> backing_;
  Blocks blocks_;
  std::vector<std::shared_ptr<GraphMemory>> graphs_;  // that keep memory
  std::shared_ptr<GraphMemory> unclaimed_;            // of captures that nobody began a graph for; null if none
  Peak peak_;
  std::shared_ptr<Observer> observer_;  // null if there is none
  Bytes told_reserved_ = 0;             // the last value that it was told
  bool wants_moving_ = false;  // at the next safe point: a request failed for it, or the last one ran out of time
  bool closed_ = false;
  int records_left_ = 64;  // events that may still be recorded on free; each wait that uses one earns more
  std::uint64_t scopes_ = 0, hits_ = 0, splits_ = 0, failures_ = 0;  // hits: without those of fronts
};

}  // namespace arena
