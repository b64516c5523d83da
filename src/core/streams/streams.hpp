// The streams that use the arena: what each has freed, what is known to have been reached, who has waited for whom.
//
// A CUstream is borrowed. To pass the driver one whose stream was destroyed is undefined behaviour, and its number
// may come back as another stream while the old one's work still runs. So a CUstream is used only while the stream is known
// to live: the default streams and those declared immortal always; one whose owner is kept here until it is let go; any
// other within the call that passed it. What was freed on a stream that cannot be named any more is ordered through its
// whole context.
//
// Events are recorded only where a mark must be waited for or asked about, never on the common path.
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

// What tells one stream from another.
struct StreamKey {
  cu::Stream stream = nullptr;
  // 0 for a stream whose CUstream stays its own. Otherwise the thread whose per-thread stream it is, or the driver's id of
  // a stream whose CUstream is borrowed and may be another's tomorrow.
  std::uint64_t tag = 0;
  auto operator<=>(const StreamKey&) const = default;
};
inline bool is_default(cu::Stream stream) {
  return stream == nullptr || stream == cu::legacy_stream() || stream == cu::per_thread_stream();
}
// The default stream that a CUstream means for this thread.
StreamKey default_key(cu::Stream stream);
// A borrowed stream, which must live now.
StreamKey borrowed_key(const Device& device, cu::Stream stream);

// How the driver is asked about what was freed on a stream: by an event in the stream, if it can be named, or also by one
// of its whole context, which a capture that is not known here would not survive.
enum class EventScope { kStreams, kContexts };

class Streams {
 public:
  // Everything that runs in the arena's context, whatever its stream. It can be freed on, but not used.
  static constexpr StreamIndex kAllStreams = 0;
  // A user for whom nothing is ordered: a graph, which runs in any stream.
  static constexpr StreamIndex kNoStream = ~StreamIndex{0};

  struct Listener {
    std::function<void(StreamIndex)> forget;  // a stream whose CUstream may not be used any more
    // The marks of a stream below this number are about to be covered by an event, or by a wait: what is freed from now
    // on must have this one or a higher one.
    std::function<void(StreamIndex, std::uint64_t)> advance;
  };
  Streams(const Device& device, Listener listener);
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // The stream of a key, which must live now. Throws UsageError for one that cannot be ordered.
  StreamIndex index(StreamKey key);
  StreamIndex index(cu::Stream stream);
  // Keeps what owns a stream, and so its CUstream, until all that was freed on it is done. Without an owner: for ever.
  void keep(cu::Stream stream, const std::shared_ptr<void>& owner);
  // While one lives, a call is under way that passed the CUstream, so it can be used.
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
  // The number that what is freed now may have at the least, and a mark that was made with one.
  std::uint64_t next_mark(StreamIndex stream) const { return states_[stream].frees + 1; }
  void raise(Mark mark) { states_[mark.stream].frees = std::max(states_[mark.stream].frees, mark.number); }
  bool reached(Mark mark) const { return states_[mark.stream].done >= mark.number; }
  // Whether the host knows that all marks were reached; forgets those that were.
  bool reached(Marks& marks) const;

  // Whether `user` has to wait for one of the marks.
  bool must_wait(StreamIndex user, Mark mark) const;
  bool must_wait(StreamIndex user, const Marks& marks) const;
  // Makes `user` wait, on the device, for marks of other streams. False if one cannot be waited for like that: then the
  // host has to wait.
  bool wait_on_device(StreamIndex user, const Marks& marks);
  // Whether an event can be recorded in the stream itself now.
  bool can_record_in(StreamIndex index) const { return can_use(states_[index]); }
  // Records an event right behind a mark that was just made, so that waiting for it covers no later work; but no more than
  // kMostEvents that are not known to be reached.
  void record_now(Mark mark);
  // Asks the driver how far the streams of the marks, or all of them, have come.
  void poll(const Marks& marks, EventScope scope);
  void poll_all(EventScope scope);
  bool are_done() const;  // as far as is known
  // Makes sure that polling can tell when the marks are reached. False if a capture, or an old driver, is in the way.
  bool ensure_events(const Marks& marks, EventScope scope);
  // Whether the driver says that the marks were reached. The answer is not remembered.
  bool query_reached(const Marks& marks) const;

  // To wait for whole contexts without the arena's lock: what had been freed before is done afterwards.
  struct Progress {
    std::vector<std::uint64_t> frees;
    std::vector<std::shared_ptr<const PrimaryContext>> others;  // beside the arena's own
  };
  Progress progress();
  void finish(const Progress& progress);

  // Whether a stream is being captured, as far as it can be asked.
  bool any_capturing() const;
  // A call passes a stream that others wanted to know about while it could not be named: now it can.
  bool wants_event(StreamIndex index) const { return states_[index].event_wanted; }
  void record_wanted_event(StreamIndex index);
  // What a call that passed a stream saw of it: which graph it is being captured for, if any. It is taken to be so until it
  // is seen again, or until the graph's capture, or all of them, are said to be over: it cannot be asked.
  void note_capture(StreamIndex index, const GraphMemory* graph);
  void note_end_of_capture(const GraphMemory* graph);
  void note_end_of_captures();

  // Whether so many are known that it is time to let some go.
  bool too_many() const { return states_.size() - vacant_.size() >= many_; }
  // Lets go of streams of which all is done and that `is_used` by no block, and makes room for others in their place.
  void drop_idle(const std::function<bool(StreamIndex)>& is_used);
  // What owned streams that were let go. To be dropped without the lock: that may run anything.
  std::vector<std::shared_ptr<void>> take_released() { return std::exchange(released_, {}); }
  bool has_released() const { return !released_.empty(); }

  std::size_t count() const { return states_.size() - vacant_.size() - 1; }  // without kAllStreams
  std::uint64_t waits() const { return waits_; }
  cu::Stream stream(StreamIndex index) const { return states_[index].key.stream; }
  StreamKey key(StreamIndex index) const { return states_[index].key; }
  const void* owner(StreamIndex index) const { return states_[index].owner.get(); }  // null if none is kept

 private:
  static constexpr std::size_t kFewEvents = 16, kMostEvents = 4096;
  // The events of one context. Those in use go back to it with the last record of them.
  struct Events {
    cu::Context context;
    std::shared_ptr<const PrimaryContext> kept;  // null for the arena's own
    std::vector<cu::Event> unused = {};
    std::size_t count = 0;
    std::size_t enough = kFewEvents;  // so many before it is asked which of them were reached
  };
  struct EventUse {
    EventUse(Events& of, cu::Event one) : events(of), event(one) {}
    ~EventUse() { events.unused.push_back(event); }
    EventUse(const EventUse&) = delete;
    EventUse& operator=(const EventUse&) = delete;
    Events& events;
    const cu::Event event;
    bool reached = false;
    std::uint64_t asked_round = 0;  // in which round it was last
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
    bool blocking = true;                       // so the legacy stream knows of its captures
    bool gone = false;                          // its CUstream may be another's by now
    const GraphMemory* captured_for = nullptr;  // when it was last seen
    bool event_wanted = false;       // what it freed is wanted elsewhere: worth an event when it is next seen
    std::uint32_t active_calls = 0;  // calls under way that passed the CUstream
    std::uint64_t frees = 0;
    std::uint64_t done = 0;
    std::deque<Record> records = {};                             // not known to be reached, in order
    std::unordered_map<StreamIndex, std::uint64_t> waited = {};  // for which marks of which others
  };

  StreamIndex add(StreamKey key);
  StreamIndex promote(cu::Stream stream);
  bool can_go(const State& state) const;
  Events& events_of(StreamKey key);
  bool can_use(const State& state) const;
  void retire(StreamIndex index);
  void retire_namesakes(StreamKey key);
  const Record* find_record(Mark mark) const;
  const Record* record_after(Mark mark, EventScope scope);
  bool record_in_stream(State& state);
  bool record_in_context(State& state);
  void advance(State& state);
  void poll_once(const Marks& marks, EventScope scope);
  EventStatus status_of(EventUse& use);
  void ask(State& state);
  void finish_state(State& state, std::uint64_t number);
  std::shared_ptr<EventUse> new_event(Events& events);
  void collect();

  const Device& device_;
  Listener listener_;
  std::vector<std::unique_ptr<Events>> events_;  // the arena's own context first
  std::vector<State> states_;                    // kAllStreams first
  std::map<StreamKey, StreamIndex> indices_;
  std::vector<StreamIndex> vacant_;  // states for other streams to use
  std::vector<std::shared_ptr<void>> released_;
  bool has_seen_capture_ = false;
  std::uint64_t round_ = 1;  // of questions: an event that many streams share is asked about once in each
  std::size_t many_ = 64;
  std::uint64_t waits_ = 0;
};

}  // namespace arena
