// The streams that use the arena: what each has freed, what is known to have been reached, who has waited for whom.
// Records events only when a mark must be waited for or asked about, never on the common path.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/marks.hpp"
#include "driver/device.hpp"

namespace arena {

// What tells one stream from another.
struct StreamKey {
  cu::Stream stream = nullptr;
  std::uint64_t thread = 0;  // whose per-thread stream it is; 0 for a stream that is everybody's
  auto operator<=>(const StreamKey&) const = default;
};
// The stream that a number means for this thread. Never the key that is made of nothing.
StreamKey key_of(cu::Stream stream);

class Streams {
 public:
  // `forget` is told which streams were found to be gone, when they are.
  Streams(const Device& device, std::function<void(StreamIndex)> forget)
      : device_(device), forget_(std::move(forget)) {}
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  StreamIndex index(StreamKey key);
  Mark mark(StreamIndex stream) { return {stream, ++states_[stream].frees}; }
  bool reached(Mark mark) const { return states_[mark.stream].done >= mark.number; }
  // Whether the host knows that all marks were reached; forgets those that were.
  bool reached(Marks& marks) const;

  // Whether `user` has to wait for one of the marks.
  bool must_wait(StreamIndex user, const Marks& marks) const;
  // Makes `user` wait, on the device, for marks of other streams. False if one cannot be waited for like that, because
  // its stream is gone or another thread's own: then the whole device must be waited for.
  bool order(StreamIndex user, const Marks& marks);
  // Asks the driver what has been reached by now, after making sure that it can tell. False as above.
  bool poll(const Marks& marks);
  bool can_tell(const Marks& marks);
  // Whether the driver says that the marks were reached. Nobody remembers the answer.
  bool are_over(const Marks& marks) const;
  // Events that are reached after the marks. To be waited for without the arena's lock, and then polled.
  std::vector<cu::Event> events_after(const Marks& marks);

  // To wait for the whole device without the arena's lock: what had been freed before is done afterwards.
  std::vector<std::uint64_t> frees() const;
  void finish(const std::vector<std::uint64_t>& frees);

  // Whether one is being captured. Forgets those that are gone: their number may come back as another stream.
  bool any_capturing();
  // Whether so many were seen since the last tidying that it is time for another, after the device was waited for.
  bool are_many() const { return states_.size() - vacant_.size() >= many_; }
  void postpone_tidying() { many_ *= 2; }
  // Makes room for others in the place of streams that are gone, and of which all is done.
  // Only of those that were gone before the device was waited for: others may still be at work, also one that came to
  // be in the place of such a stream, by another thread's tidying.
  struct Gone {
    StreamIndex index;
    std::uint64_t life;
  };
  void tidy(const std::vector<Gone>& gone);
  std::vector<Gone> gone();
  std::uint64_t waits() const { return waits_; }
  cu::Stream stream(StreamIndex index) const { return states_[index].key.stream; }

 private:
  struct Record {
    cu::Event event;
    std::uint64_t number;
  };
  struct State {
    StreamKey key;
    bool gone = false;
    std::uint64_t life = 0;  // the how-manieth stream it is of
    std::uint64_t frees = 0;
    std::uint64_t done = 0;
    std::deque<Record> records;                             // not known to be reached, in order
    std::unordered_map<StreamIndex, std::uint64_t> waited;  // for which marks of which others
  };

  bool must_wait(StreamIndex user, Mark mark) const;
  static bool can_reach(const State& state);
  void lose(StreamIndex index);
  const Record* record_after(StreamIndex stream, std::uint64_t number);
  void finish_state(State& state, std::uint64_t number);
  cu::Event new_event();
  void collect();

  const Device& device_;
  std::vector<State> states_;
  std::function<void(StreamIndex)> forget_;
  std::map<StreamKey, StreamIndex> indices_;
  std::vector<cu::Event> unused_;
  std::vector<StreamIndex> vacant_;  // states of streams that are gone, for others to use
  std::size_t many_ = 64;
  std::size_t events_ = 0;  // that exist
  std::uint64_t waits_ = 0;
};

}  // namespace arena
