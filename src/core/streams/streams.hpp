// The streams that use the arena: what each one freed, which marks it is known to have reached, and which other streams
// it has waited for.
//
// A CUstream is borrowed. Passing a destroyed one to the driver is undefined behaviour, and its value may be reused for
// another stream while the old stream's work still runs. So a CUstream is used only while the stream is known to be
// alive: the default streams and those declared immortal always; a stream whose owner is kept here until the owner is
// dropped; any other only during the call that passed it. Memory freed on a stream that can no longer be used is
// ordered through its whole context.
//
// Events are recorded only when a mark must be waited for or queried, never on the hit path.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/streams/marks.hpp"
#include "driver/device.hpp"

namespace arena {

class GraphMemory;

// Identifies a stream.
struct StreamKey {
  cu::Stream stream = nullptr;
  // 0 if the CUstream cannot be reused while the key is known. Otherwise the thread of a per-thread stream, or the
  // driver's id of a borrowed stream, whose CUstream may be reused for another one. With the legacy stream: another
  // device's context, all of whose streams are meant.
  std::uint64_t tag = 0;
  auto operator<=>(const StreamKey&) const = default;
};
inline bool is_default(cu::Stream stream) {
  return stream == nullptr || stream == cu::legacy_stream() || stream == cu::per_thread_stream();
}
// The default stream that a CUstream means in this thread.
StreamKey default_key(cu::Stream stream);
// All streams of another device's primary context. Memory can be ordered after them, but they cannot be used.
StreamKey context_key(cu::Context context);
// The stream must be alive.
StreamKey borrowed_key(const Device& device, cu::Stream stream);

// Where events may be recorded: only in streams that can be used, or also in whole contexts. The latter invalidates a
// capture that is not known here.
enum class EventScope { kStreams, kContexts };

class Streams {
 public:
  // Stands for all streams of the arena's context. Memory can be freed on it, but it cannot be used.
  static constexpr StreamIndex kAllStreams = 0;
  // A user that nothing is ordered for: a graph, which can run in any stream.
  static constexpr StreamIndex kNoStream = ~StreamIndex{0};

  struct Listener {
    std::function<void(StreamIndex)> forget;  // the CUstream of this stream may no longer be used
    // An event or a wait is about to cover all marks of a stream below this number. Frees from now on must have this
    // number or a higher one.
    std::function<void(StreamIndex, std::uint64_t)> advance;
  };
  Streams(const Device& device, Listener listener);
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // The stream must be alive. Throws UsageError for one that memory cannot be ordered after.
  StreamIndex index(StreamKey key);
  StreamIndex index(cu::Stream stream);
  // Keeps the owner of a stream, and so its CUstream, until everything freed on the stream is done. A null owner
  // declares the stream immortal.
  void keep(cu::Stream stream, const std::shared_ptr<void>& owner);
  // Marks a call that passed the CUstream as in progress: until it returns, the CUstream can be used.
  class ActiveCall {
   public:
    ActiveCall(Streams& streams, StreamIndex index) : streams_(streams), index_(index) {
      ++streams_.states_[index_].active_calls;
    }
    ~ActiveCall() { --streams_.states_[index_].active_calls; }
    ActiveCall(const ActiveCall&) = delete;
    ActiveCall& operator=(const ActiveCall&) = delete;

   private:
    Streams& streams_;
    StreamIndex index_;
  };

  Mark mark(StreamIndex stream) { return {stream, ++states_[stream].frees}; }
  // The lowest number that a free may have from now on. raise() takes note of a mark that a cache made with it.
  std::uint64_t next_mark(StreamIndex stream) const { return states_[stream].frees + 1; }
  void raise(Mark mark) { states_[mark.stream].frees = std::max(states_[mark.stream].frees, mark.number); }
  bool reached(Mark mark) const { return states_[mark.stream].done >= mark.number; }
  // Whether all marks are known to be reached. Drops those that are.
  bool reached(Marks& marks) const;

  // Whether `user` has to wait for one of the marks.
  bool must_wait(StreamIndex user, Mark mark) const;
  bool must_wait(StreamIndex user, const Marks& marks) const;
  // Makes `user` wait on the device for marks of other streams. False if that is not possible for one of them: then the
  // host has to wait.
  bool wait_on_device(StreamIndex user, const Marks& marks);
  // Whether an event can be recorded in the stream itself now.
  bool can_record_in(StreamIndex index) const { return can_use(states_[index]); }
  // Records an event right after a mark that was just made, so that waiting for it covers no later work. Does nothing
  // while kMostEvents events of the stream are pending.
  void record_now(Mark mark);
  // Asks the driver how far the streams of the marks, or all streams, have come.
  void poll(const Marks& marks, EventScope scope);
  void poll_all(EventScope scope);
  bool are_done() const;  // as far as the host knows
  // Makes sure that polling can tell when the marks are reached. False if a capture or an old driver prevents that.
  bool ensure_events(const Marks& marks, EventScope scope);
  // Whether the driver says that the marks are reached. Does not remember the answer.
  bool query_reached(const Marks& marks) const;

  // To wait for whole contexts without the arena's lock: take progress(), wait, and call finish(), which marks
  // everything freed before as done.
  struct Progress {
    std::vector<std::uint64_t> frees;
    std::vector<std::shared_ptr<const PrimaryContext>> others;  // contexts besides the arena's own
  };
  Progress progress();
  void finish(const Progress& progress);

  // Whether a stream is being captured, as far as the driver can be asked.
  bool any_capturing() const;
  // Whether an event was needed while the stream could not be used. The next call that passes the stream records it.
  bool wants_event(StreamIndex index) const { return states_[index].event_wanted; }
  void record_wanted_event(StreamIndex index);
  // The graph that a stream is being captured for, or null, as seen by a call that passed it. Assumed to hold until the
  // next such call, or until the end of that capture or of all captures is noted: the driver cannot be asked.
  void note_capture(StreamIndex index, const GraphMemory* graph);
  void note_end_of_capture(const GraphMemory* graph);
  void note_end_of_captures();

  // Whether it is time to call drop_idle().
  bool too_many() const { return states_.size() - vacant_.size() >= drop_threshold_; }
  // Drops streams whose work is done and that no block uses (`is_used`), and reuses their indices.
  void drop_idle(const std::function<bool(StreamIndex)>& is_used);
  // The owners of dropped streams. Destroy them without the lock: their destructors may run anything.
  std::vector<std::shared_ptr<void>> take_released() { return std::exchange(released_, {}); }
  bool has_released() const { return !released_.empty(); }

  std::size_t count() const { return states_.size() - vacant_.size() - 1; }  // without kAllStreams
  std::uint64_t waits() const { return waits_; }
  cu::Stream stream(StreamIndex index) const { return states_[index].key.stream; }
  StreamKey key(StreamIndex index) const { return states_[index].key; }
  const void* owner(StreamIndex index) const { return states_[index].owner.get(); }  // null if none is kept

 private:
  static constexpr std::size_t kFewEvents = 16, kMostEvents = 4096;
  // The events of one context. An event returns to `unused` with its last Record.
  struct Events {
    cu::Context context;
    std::shared_ptr<const PrimaryContext> primary;  // null for the arena's own context
    std::vector<cu::Event> unused = {};
    std::size_t count = 0;
    std::size_t collect_at = kFewEvents;  // with this many events, first look for reached ones
  };
  struct EventUse {
    EventUse(Events& of, cu::Event one) : events(of), event(one) {}
    ~EventUse() { events.unused.push_back(event); }
    EventUse(const EventUse&) = delete;
    EventUse& operator=(const EventUse&) = delete;
    Events& events;
    const cu::Event event;
    bool reached = false;
    std::uint64_t query_round = 0;  // of the last query
  };
  struct Record {
    std::shared_ptr<EventUse> use;
    std::uint64_t number;
  };
  struct State {
    StreamKey key;
    Events* events = nullptr;  // of its context
    std::shared_ptr<void> owner = {};
    bool immortal = false;
    bool blocking = true;                                        // its captures are visible through the legacy stream
    bool gone = false;                                           // its CUstream may have been reused
    const GraphMemory* captured_for = nullptr;                   // as last seen
    bool event_wanted = false;                                   // record an event when a call next passes the stream
    std::uint32_t active_calls = 0;                              // calls in progress that passed the CUstream
    std::uint64_t frees = 0;                                     // number of the last mark
    std::uint64_t done = 0;                                      // marks up to this number are known to be reached
    std::deque<Record> records = {};                             // pending, in order
    std::unordered_map<StreamIndex, std::uint64_t> waited = {};  // other streams, and the marks it has waited for
  };

  StreamIndex add(StreamKey key);
  StreamIndex promote(cu::Stream stream);
  bool can_drop(const State& state) const;
  Events& events_of(StreamKey key);
  Events& events_of(cu::Context context);
  bool can_use(const State& state) const;
  void retire(StreamIndex index);
  void retire_same_handle(StreamKey key);
  const Record* find_record(Mark mark) const;
  const Record* record_after(Mark mark, EventScope scope);
  bool record_in_stream(State& state);
  bool record_in_context(State& state);
  void advance(State& state);
  void poll_once(const Marks& marks, EventScope scope);
  EventStatus status_of(EventUse& use);
  void query_records(State& state);
  void finish_state(State& state, std::uint64_t number);
  std::shared_ptr<EventUse> new_event(Events& events);
  void collect();

  const Device& device_;
  Listener listener_;
  std::vector<std::unique_ptr<Events>> events_;  // the arena's own context first
  std::vector<State> states_;                    // kAllStreams first
  std::map<StreamKey, StreamIndex> indices_;
  std::vector<StreamIndex> vacant_;  // free indices of states_
  std::vector<std::shared_ptr<void>> released_;
  bool has_seen_capture_ = false;
  std::uint64_t round_ = 1;  // of queries: an event that several streams share is queried once per round
  std::size_t drop_threshold_ = 64;
  std::uint64_t waits_ = 0;
};

}  // namespace arena
