#include "core/streams.hpp"

#include <atomic>

namespace arena {
namespace {

constexpr std::size_t kFewEvents = 16;

std::uint64_t this_thread() {
  static std::atomic<std::uint64_t> next{1};
  thread_local const std::uint64_t number = next.fetch_add(1);
  return number;
}

}  // namespace

Streams::~Streams() {
  const auto forget = [&](cu::Event event) {
    try {
      device_.delete_event(event);
    } catch (const Error&) {  // the driver is gone, and its events with it
    }
  };
  for (State& state : states_) {
    for (const Record& record : state.records) forget(record.event);
  }
  for (const cu::Event event : unused_) forget(event);
}

StreamIndex Streams::index(cu::Stream stream) {
  if (stream == nullptr) stream = cu::legacy_stream();
  const std::uint64_t thread = stream == cu::per_thread_stream() ? this_thread() : 0;
  const auto [it, is_new] = indices_.try_emplace({stream, thread}, static_cast<StreamIndex>(states_.size()));
  if (is_new) states_.push_back({stream, false, thread, 0, 0, {}, {}});
  return it->second;
}

bool Streams::reached(Marks& marks) const {
  marks.drop_if([&](Mark mark) { return reached(mark); });
  return marks.empty();
}

cu::Event Streams::new_event() {
  if (unused_.empty() && events_ >= kFewEvents) collect();  // or a long run would hold more and more of them
  if (unused_.empty()) {
    const cu::Event event = device_.new_event();
    ++events_;
    return event;
  }
  const cu::Event event = unused_.back();
  unused_.pop_back();
  return event;
}

void Streams::finish(State& state, std::uint64_t number) {
  state.done = std::max(state.done, number);
  while (!state.records.empty() && state.records.front().number <= state.done) {
    unused_.push_back(state.records.front().event);
    state.records.pop_front();
  }
}

// The number of the per-thread stream means the calling thread's own: another thread's cannot be named at all.
bool Streams::can_reach(const State& state) { return state.thread == 0 || state.thread == this_thread(); }

// A record that is reached after the mark; null when the mark has been reached, because the stream is gone or out of
// reach and the whole device was waited for instead.
const Streams::Record* Streams::record_after(StreamIndex stream, std::uint64_t number) {
  State& state = states_[stream];
  for (const Record& record : state.records) {
    if (record.number >= number) return &record;
  }
  const cu::Event event = new_event();
  bool recorded = false;
  try {
    recorded = !state.gone && can_reach(state) && device_.record(event, state.stream);
  } catch (const Error&) {
    unused_.push_back(event);
    throw;
  }
  if (!recorded) {
    unused_.push_back(event);
    device_.synchronize();
    finish(state, state.frees);
    return nullptr;
  }
  state.records.push_back({event, state.frees});
  return &state.records.back();
}

bool Streams::must_wait(StreamIndex user, Mark mark) const {
  if (mark.stream == user || reached(mark)) return false;
  const auto waited = states_[user].waited.find(mark.stream);
  return waited == states_[user].waited.end() || waited->second < mark.number;
}

bool Streams::must_wait(StreamIndex user, const Marks& marks) const {
  return std::any_of(marks.begin(), marks.end(), [&](Mark mark) { return must_wait(user, mark); });
}

void Streams::order(StreamIndex user, const Marks& marks) {
  for (const Mark mark : marks) {
    if (!must_wait(user, mark)) continue;
    const Record* record = record_after(mark.stream, mark.number);
    if (record == nullptr) continue;
    device_.wait(states_[user].stream, record->event);
    states_[user].waited[mark.stream] = record->number;
    ++waits_;
  }
}

void Streams::poll(const Marks& marks) {
  for (const Mark mark : marks) {
    if (!reached(mark)) record_after(mark.stream, mark.number);
  }
  collect();
}

void Streams::collect() {
  for (State& state : states_) {
    while (!state.records.empty() && device_.reached(state.records.front().event)) {
      finish(state, state.records.front().number);
    }
  }
}

std::vector<cu::Event> Streams::events_after(const Marks& marks) {
  std::vector<cu::Event> events;
  for (const Mark mark : marks) {
    if (reached(mark)) continue;
    if (const Record* record = record_after(mark.stream, mark.number)) events.push_back(record->event);
  }
  return events;
}

bool Streams::any_capturing() {
  for (State& state : states_) {
    if (state.gone || !can_reach(state)) continue;
    const std::optional<bool> capturing = device_.is_capturing(state.stream);
    if (capturing.value_or(false)) return true;
    if (capturing) continue;
    state.gone = true;
    indices_.erase({state.stream, state.thread});
  }
  return false;
}

}  // namespace arena
