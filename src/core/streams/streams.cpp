#include "core/streams/streams.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

#if __has_include(<pthread.h>)
#include <pthread.h>
#endif

namespace arena {
namespace {

constexpr std::size_t kFewStreams = 64;

// Numbers of threads that have not ended. Leaked, because threads can end at any time.
struct LiveThreads {
  std::mutex mutex;
  std::set<std::uint64_t> numbers;
  std::uint64_t last = 0;
};
LiveThreads& live_threads = *new LiveThreads;

#if __has_include(<pthread.h>)
// A child uses this mutex, too, so no thread of the parent may hold it during the fork.
const int held_while_forking = pthread_atfork([] { live_threads.mutex.lock(); }, [] { live_threads.mutex.unlock(); },
                                              [] { live_threads.mutex.unlock(); });
#endif

struct ThreadNumber {
  std::uint64_t value = [] {
    const std::lock_guard lock(live_threads.mutex);
    return *live_threads.numbers.insert(++live_threads.last).first;
  }();
  ~ThreadNumber() {
    const std::lock_guard lock(live_threads.mutex);
    live_threads.numbers.erase(value);
  }
};

std::uint64_t this_thread() {
  thread_local const ThreadNumber number;
  return number.value;
}

bool has_ended(std::uint64_t thread) {
  const std::lock_guard lock(live_threads.mutex);
  return live_threads.numbers.count(thread) == 0;
}

cu::Context context_in(StreamKey key) {
  return key.stream == cu::legacy_stream() ? reinterpret_cast<cu::Context>(key.tag) : nullptr;
}

}  // namespace

StreamKey default_key(cu::Stream stream) {
  return stream == cu::per_thread_stream() ? StreamKey{stream, this_thread()} : StreamKey{cu::legacy_stream(), 0};
}

StreamKey context_key(cu::Context context) { return {cu::legacy_stream(), reinterpret_cast<std::uintptr_t>(context)}; }

// Before CUDA 12 there are no stream ids, so every call may be passing another stream.
StreamKey borrowed_key(const Device& device, cu::Stream stream) {
  static std::atomic<std::uint64_t> unknown{0};
  constexpr std::uint64_t kNotAnId = std::uint64_t{1} << 63;
  const std::optional<std::uint64_t> id = device.stream_id(stream);
  return {stream, id ? *id + 1 : kNotAnId | ++unknown};
}

Streams::Streams(const Device& device, Listener listener) : device_(device), listener_(std::move(listener)) {
  events_.push_back(std::make_unique<Events>(Events{device.context(), nullptr}));
  states_.emplace_back();
  states_[kAllStreams].events = events_.front().get();
  states_[kAllStreams].gone = true;
}

Streams::~Streams() {
  states_.clear();
  for (const auto& events : events_) {
    for (const cu::Event event : events->unused) try_twice([&] { device_.delete_event(event); });
  }
}

StreamIndex Streams::index(cu::Stream stream) {
  if (is_default(stream)) return index(default_key(stream));
  const auto it = indices_.find({stream, 0});
  return it != indices_.end() ? it->second : index(borrowed_key(device_, stream));
}

StreamIndex Streams::index(StreamKey key) {
  if (key.tag != 0 && !is_default(key.stream)) {
    if (const auto kept = indices_.find({key.stream, 0}); kept != indices_.end()) return kept->second;
  }
  if (const auto it = indices_.find(key); it != indices_.end()) return it->second;
  // A kept stream that was dropped since its key was looked up: its CUstream alone no longer identifies it.
  const bool was_kept = key.tag == 0 && !is_default(key.stream);
  return was_kept ? index(borrowed_key(device_, key.stream)) : add(key);
}

void Streams::keep(cu::Stream stream, const std::shared_ptr<void>& owner) {
  if (is_default(stream)) return;
  const auto known = indices_.find({stream, 0});
  State& state = states_[known != indices_.end() ? known->second : promote(stream)];
  state.immortal |= owner == nullptr;
  if (owner && !state.owner) state.owner = owner;
}

// Turns a borrowed stream into a kept one, identified by its CUstream.
StreamIndex Streams::promote(cu::Stream stream) {
  const auto borrowed = indices_.find(borrowed_key(device_, stream));
  if (borrowed == indices_.end()) return add({stream, 0});
  const StreamIndex index = borrowed->second;
  indices_.erase(borrowed);
  listener_.forget(index);
  states_[index].key = {stream, 0};
  indices_.emplace(states_[index].key, index);
  return index;
}

// A new stream with the CUstream of a known one means that the known one is gone. The old stream's blocks are still
// freed on its index.
void Streams::retire_same_handle(StreamKey key) {
  if (is_default(key.stream)) return;
  while (true) {
    const auto it = indices_.lower_bound({key.stream, 0});
    if (it == indices_.end() || it->first.stream != key.stream) return;
    retire(it->second);
  }
}

StreamIndex Streams::add(StreamKey key) {
  Events& events = events_of(key);
  const bool is_blocking = is_default(key.stream) || device_.is_blocking(key.stream);
  retire_same_handle(key);
  StreamIndex index = static_cast<StreamIndex>(states_.size());
  if (vacant_.empty()) {
    states_.emplace_back();
  } else {
    index = vacant_.back();
    vacant_.pop_back();
  }
  // The counters of a reused state go on, so that its old marks stay reached.
  State& state = states_[index];
  state.key = key;
  state.events = &events;
  state.immortal = is_default(key.stream) && context_in(key) == nullptr;
  state.blocking = is_blocking;
  state.gone = false;
  state.waited.clear();
  indices_.emplace(key, index);
  return index;
}

// Other devices' primary contexts can be kept alive by a reference. Any other context could be destroyed at any time.
Streams::Events& Streams::events_of(StreamKey key) {
  if (const cu::Context context = context_in(key)) return events_of(context);
  return events_of(is_default(key.stream) ? nullptr : device_.context_of(key.stream));
}

// Null: the arena's own.
Streams::Events& Streams::events_of(cu::Context context) {
  if (context == nullptr) return *events_.front();
  for (const auto& events : events_) {
    if (events->context == context) return *events;
  }
  auto primary = device_.primary(context);
  if (!primary) {
    throw UsageError(
        "this stream belongs to a context that is not its device's primary context, so memory cannot be ordered after "
        "it; use a stream of the primary context, as the CUDA runtime and CuPy do");
  }
  events_.push_back(std::make_unique<Events>(Events{context, std::move(primary)}));
  return *events_.back();
}

bool Streams::reached(Marks& marks) const {
  marks.drop_if([&](Mark mark) { return reached(mark); });
  return marks.empty();
}

std::shared_ptr<Streams::EventUse> Streams::new_event(Events& events) {
  // Otherwise a long run would create more and more events.
  if (events.unused.empty() && events.count >= events.collect_at) {
    collect();
    events.collect_at = std::max(kFewEvents, 2 * (events.count - events.unused.size()));
  }
  if (events.unused.empty()) {
    events.unused.push_back(device_.new_event(events.context));
    ++events.count;
  }
  const cu::Event event = events.unused.back();
  events.unused.pop_back();
  return std::make_shared<EventUse>(events, event);
}

void Streams::finish_state(State& state, std::uint64_t number) {
  state.done = std::max(state.done, number);
  while (!state.records.empty() && state.records.front().number <= state.done) state.records.pop_front();
}

// The per-thread stream's handle means the calling thread's own stream: another thread's cannot be passed at all.
bool Streams::can_use(const State& state) const {
  if (state.gone) return false;
  if (state.key.stream == cu::per_thread_stream()) return state.key.tag == this_thread();
  return state.immortal || state.owner != nullptr || state.active_calls > 0;
}

void Streams::retire(StreamIndex index) {
  State& state = states_[index];
  state.gone = true;
  state.immortal = false;
  state.captured_for = nullptr;
  if (state.owner) released_.push_back(std::move(state.owner));
  state.owner = nullptr;
  indices_.erase(state.key);
  listener_.forget(index);
}

const Streams::Record* Streams::find_record(Mark mark) const {
  const std::deque<Record>& records = states_[mark.stream].records;
  const auto is_before = [](const Record& record, std::uint64_t number) { return record.number < number; };
  const auto found = std::lower_bound(records.begin(), records.end(), mark.number, is_before);
  return found != records.end() ? &*found : nullptr;
}

// A record at or after the mark; null if there is none and none can be made now.
const Streams::Record* Streams::record_after(Mark mark, EventScope scope) {
  if (const Record* found = find_record(mark)) return found;
  State& state = states_[mark.stream];
  const bool is_usable = can_use(state);
  state.event_wanted = !is_usable && scope == EventScope::kStreams;
  const bool recorded =
      is_usable ? record_in_stream(state) : scope == EventScope::kContexts && record_in_context(state);
  return recorded ? &state.records.back() : nullptr;
}

void Streams::record_wanted_event(StreamIndex index) {
  State& state = states_[index];
  state.event_wanted = false;
  if (can_use(state) && state.frees > state.done) ignore_errors([&] { record_in_stream(state); });
}

// Gives everything freed so far, including cached blocks, a number that the next event covers.
void Streams::advance(State& state) {
  ++state.frees;
  listener_.advance(static_cast<StreamIndex>(&state - states_.data()), state.frees + 1);
}

// Another thread may begin a capture at any moment. If none is in progress after the record, the record is not part of
// one.
bool Streams::record_in_stream(State& state) {
  if (device_.is_capturing(state.key.stream)) return false;
  const auto use = new_event(*state.events);
  advance(state);
  if (!device_.record(use->event, state.key.stream)) return false;
  if (state.key.stream != cu::legacy_stream() && device_.is_capturing(state.key.stream)) return false;
  state.records.push_back({use, state.frees});
  return true;
}

// This would invalidate a capture, so it checks for known ones first.
bool Streams::record_in_context(State& state) {
  if (!device_.can_record_context() || any_capturing()) return false;
  const auto use = new_event(*state.events);
  std::vector<State*> covered{&state};
  for (State& other : states_) {
    const bool needs_it = other.events == state.events && other.frees > other.done && !can_use(other);
    if (&other != &state && needs_it) covered.push_back(&other);
  }
  for (State* other : covered) advance(*other);
  if (!device_.record_context(use->event, state.events->context)) return false;
  for (State* other : covered) other->records.push_back({use, other->frees});
  return true;
}

void Streams::note_capture(StreamIndex index, const GraphMemory* graph) {
  states_[index].captured_for = graph;
  has_seen_capture_ |= graph != nullptr;
}

void Streams::note_end_of_capture(const GraphMemory* graph) {
  for (State& state : states_) {
    if (state.captured_for == graph) state.captured_for = nullptr;
  }
}

void Streams::note_end_of_captures() {
  for (State& state : states_) state.captured_for = nullptr;
}

void Streams::record_now(Mark mark) {
  State& state = states_[mark.stream];
  if (state.frees != mark.number) return;
  ignore_errors([&] {
    if (state.records.size() >= kMostEvents) {
      ++round_;
      query_records(state);
    }
    if (state.records.size() >= kMostEvents) return;
    if (can_use(state)) {
      record_in_stream(state);
    } else if (!has_seen_capture_) {
      record_in_context(state);
    }
  });
}

bool Streams::must_wait(StreamIndex user, Mark mark) const {
  if (mark.stream == user || reached(mark)) return false;
  if (user == kNoStream) return true;
  const auto waited = states_[user].waited.find(mark.stream);
  return waited == states_[user].waited.end() || waited->second < mark.number;
}

bool Streams::must_wait(StreamIndex user, const Marks& marks) const {
  return std::any_of(marks.begin(), marks.end(), [&](Mark mark) { return must_wait(user, mark); });
}

bool Streams::wait_on_device(StreamIndex user, const Marks& marks) {
  for (const Mark mark : marks) {
    if (!must_wait(user, mark)) continue;
    const Record* record = record_after(mark, EventScope::kContexts);
    if (record == nullptr || !device_.wait(states_[user].key.stream, record->use->event)) return false;
    states_[user].waited[mark.stream] = record->number;
    ++waits_;
  }
  return true;
}

// Queries the driver at most once per round.
EventStatus Streams::status_of(EventUse& use) {
  if (use.reached) return EventStatus::kReached;
  if (use.query_round == round_) return EventStatus::kPending;
  use.query_round = round_;
  const EventStatus status = device_.query(use.event);
  use.reached = status == EventStatus::kReached;
  return status;
}

// Records are reached in order. Queries the first, and if that is reached, finds the last reached one by bisection.
void Streams::query_records(State& state) {
  std::size_t begin = 0, end = state.records.size();  // records before `begin` are reached, those from `end` on are not
  for (std::size_t at = 0; begin < end; at = begin + (end - begin) / 2) {
    const EventStatus status = status_of(*state.records[at].use);
    if (status == EventStatus::kReached) {
      begin = at + 1;
    } else if (status == EventStatus::kPending) {
      end = at;
    } else {
      state.records.erase(state.records.begin() + static_cast<std::ptrdiff_t>(at));  // it became part of a capture
      --end;
    }
  }
  if (begin > 0) finish_state(state, state.records[begin - 1].number);
}

void Streams::poll(const Marks& marks, EventScope scope) {
  ++round_;
  poll_once(marks, scope);
}

void Streams::poll_once(const Marks& marks, EventScope scope) {
  for (const Mark mark : marks) {
    State& state = states_[mark.stream];
    if (!reached(mark)) query_records(state);
    if (!reached(mark) && state.records.empty() && record_after(mark, scope) != nullptr) query_records(state);
  }
}

void Streams::poll_all(EventScope scope) {
  ++round_;
  for (StreamIndex index = 0; index < states_.size(); ++index) {
    const State& state = states_[index];
    if (state.done < state.frees) poll_once(Marks({index, state.frees}), scope);
  }
}

bool Streams::are_done() const {
  return std::all_of(states_.begin(), states_.end(), [](const State& state) { return state.done >= state.frees; });
}

bool Streams::ensure_events(const Marks& marks, EventScope scope) {
  bool all = true;
  for (const Mark mark : marks) {
    if (!reached(mark)) all &= record_after(mark, scope) != nullptr;
  }
  return all;
}

bool Streams::query_reached(const Marks& marks) const {
  return std::all_of(marks.begin(), marks.end(), [&](Mark mark) {
    if (reached(mark)) return true;
    const Record* record = find_record(mark);
    return record != nullptr && device_.query(record->use->event) == EventStatus::kReached;
  });
}

void Streams::collect() {
  ++round_;
  for (State& state : states_) query_records(state);
}

Streams::Progress Streams::progress() {
  Progress now;
  for (State& state : states_) {
    advance(state);
    now.frees.push_back(state.frees);
  }
  for (const auto& events : events_) {
    if (events->primary) now.others.push_back(events->primary);
  }
  return now;
}

void Streams::finish(const Progress& progress) {
  for (std::size_t i = 0; i < progress.frees.size(); ++i) finish_state(states_[i], progress.frees[i]);
}

// The legacy stream reports captures of all blocking streams of its context, including unknown ones.
bool Streams::any_capturing() const {
  const auto is_capturing = [&](const State& state) {
    return can_use(state) ? !state.blocking && device_.is_capturing(state.key.stream) : state.captured_for != nullptr;
  };
  return device_.is_capturing(cu::legacy_stream()) || std::any_of(states_.begin(), states_.end(), is_capturing);
}

// Whether nothing will be ordered after a stream any more.
bool Streams::can_drop(const State& state) const {
  if (state.key.stream == nullptr || state.active_calls > 0 || state.done < state.frees) return false;
  return !state.immortal || (state.key.stream == cu::per_thread_stream() && has_ended(state.key.tag));
}

void Streams::drop_idle(const std::function<bool(StreamIndex)>& is_used) {
  for (StreamIndex index = kAllStreams + 1; index < states_.size(); ++index) {
    if (!can_drop(states_[index]) || is_used(index)) continue;
    if (!states_[index].gone) retire(index);
    states_[index].key = {};
    vacant_.push_back(index);
  }
  drop_threshold_ = std::max(kFewStreams, 2 * (states_.size() - vacant_.size()));
}

}  // namespace arena
