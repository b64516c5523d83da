#include "core/streams.hpp"

#include <algorithm>
#include <mutex>
#include <set>

#if __has_include(<pthread.h>)
#include <pthread.h>
#endif

namespace arena {
namespace {

constexpr std::size_t kFewEvents = 16;

// Threads that were numbered and have not ended. Never destroyed: threads end at any time.
struct Living {
  std::mutex mutex;
  std::set<std::uint64_t> numbers;
  std::uint64_t last = 0;
};
Living& living = *new Living;

#if __has_include(<pthread.h>)
// A child has threads as well, so none of its parent's may be in the middle of this when it is made.
const int held_while_forking =
    pthread_atfork([] { living.mutex.lock(); }, [] { living.mutex.unlock(); }, [] { living.mutex.unlock(); });
#endif

struct ThreadNumber {
  std::uint64_t value = [] {
    const std::lock_guard lock(living.mutex);
    return *living.numbers.insert(++living.last).first;
  }();
  ~ThreadNumber() {
    const std::lock_guard lock(living.mutex);
    living.numbers.erase(value);
  }
};

std::uint64_t this_thread() {
  thread_local const ThreadNumber number;
  return number.value;
}

bool has_ended(std::uint64_t thread) {
  const std::lock_guard lock(living.mutex);
  return living.numbers.count(thread) == 0;
}

}  // namespace

Streams::~Streams() {
  const auto forget = [&](cu::Event event) { insist([&] { device_.delete_event(event); }); };
  for (State& state : states_) {
    for (const Record& record : state.records) forget(record.event);
  }
  for (const cu::Event event : unused_) forget(event);
}

StreamKey key_of(cu::Stream stream) {
  if (stream == nullptr) return {cu::legacy_stream(), 0};
  return {stream, stream == cu::per_thread_stream() ? this_thread() : 0};
}

StreamIndex Streams::index(StreamKey key) {
  const auto [it, is_new] = indices_.try_emplace(key, static_cast<StreamIndex>(states_.size()));
  if (!is_new) return it->second;
  if (vacant_.empty()) {
    states_.emplace_back();
  } else {
    it->second = vacant_.back();
    vacant_.pop_back();
  }
  // A vacant state goes on counting, so that old marks in it stay reached.
  State& state = states_[it->second];
  state.key = key;
  state.gone = false;
  ++state.life;
  state.waited.clear();
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

void Streams::finish_state(State& state, std::uint64_t number) {
  state.done = std::max(state.done, number);
  while (!state.records.empty() && state.records.front().number <= state.done) {
    unused_.push_back(state.records.front().event);
    state.records.pop_front();
  }
}

// The number of the per-thread stream means the calling thread's own: another thread's cannot be named at all.
bool Streams::can_reach(const State& state) { return state.key.thread == 0 || state.key.thread == this_thread(); }

// Its number may come back as another stream.
void Streams::lose(StreamIndex index) {
  states_[index].gone = true;
  indices_.erase(states_[index].key);
  forget_(index);
}

// A record that is reached after the mark; null when the stream is gone or out of reach.
const Streams::Record* Streams::record_after(StreamIndex stream, std::uint64_t number) {
  State& state = states_[stream];
  for (const Record& record : state.records) {
    if (record.number >= number) return &record;
  }
  if (state.gone || !can_reach(state)) return nullptr;
  const cu::Event event = new_event();
  bool recorded = false;
  try {
    recorded = device_.record(event, state.key.stream);
  } catch (const Error&) {
    unused_.push_back(event);
    throw;
  }
  if (!recorded) {
    unused_.push_back(event);
    lose(stream);
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

bool Streams::order(StreamIndex user, const Marks& marks) {
  for (const Mark mark : marks) {
    if (!must_wait(user, mark)) continue;
    const Record* record = record_after(mark.stream, mark.number);
    if (record == nullptr) return false;
    device_.wait(states_[user].key.stream, record->event);
    states_[user].waited[mark.stream] = record->number;
    ++waits_;
  }
  return true;
}

bool Streams::poll(const Marks& marks) {
  const bool told = can_tell(marks);
  collect();
  return told;
}

bool Streams::can_tell(const Marks& marks) {
  bool all = true;
  for (const Mark mark : marks) {
    if (!reached(mark)) all &= record_after(mark.stream, mark.number) != nullptr;
  }
  return all;
}

bool Streams::are_over(const Marks& marks) const {
  return std::all_of(marks.begin(), marks.end(), [&](Mark mark) {
    if (reached(mark)) return true;
    const auto& records = states_[mark.stream].records;
    const auto is_after = [&](const Record& record) { return record.number >= mark.number; };
    const auto it = std::find_if(records.begin(), records.end(), is_after);
    return it != records.end() && device_.reached(it->event);
  });
}

void Streams::collect() {
  for (State& state : states_) {
    while (!state.records.empty() && device_.reached(state.records.front().event)) {
      finish_state(state, state.records.front().number);
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

std::vector<std::uint64_t> Streams::frees() const {
  std::vector<std::uint64_t> all;
  for (const State& state : states_) all.push_back(state.frees);
  return all;
}

void Streams::finish(const std::vector<std::uint64_t>& frees) {
  for (std::size_t i = 0; i < frees.size(); ++i) finish_state(states_[i], frees[i]);
}

std::vector<Streams::Gone> Streams::gone() {
  std::vector<Gone> found;
  for (StreamIndex index = 0; index < states_.size(); ++index) {
    const State& state = states_[index];
    if (state.key.stream == nullptr) continue;  // vacant
    if (state.key.thread != 0 && !state.gone && has_ended(state.key.thread)) lose(index);
    if (state.gone) found.push_back({index, state.life});
  }
  return found;
}

void Streams::tidy(const std::vector<Gone>& gone) {
  for (const auto& [index, life] : gone) {
    State& state = states_[index];
    if (state.key.stream == nullptr || state.life != life || state.done < state.frees) continue;
    state.key = {};
    vacant_.push_back(index);
  }
  many_ = std::max<std::size_t>(64, 2 * (states_.size() - vacant_.size()));
}

// Other threads' own streams cannot be asked about, but the legacy stream waits for them, and so knows.
bool Streams::any_capturing() {
  bool all_asked = true;
  for (StreamIndex index = 0; index < states_.size(); ++index) {
    const State& state = states_[index];
    if (state.gone || state.key.stream == nullptr) continue;
    if (!can_reach(state)) {
      all_asked = false;
      continue;
    }
    const std::optional<bool> capturing = device_.is_capturing(state.key.stream);
    if (capturing.value_or(false)) return true;
    if (!capturing) lose(index);
  }
  return !all_asked && device_.is_capturing(cu::legacy_stream()).value_or(false);
}

}  // namespace arena
