// Runs a trace through an arena, event by event, as fast as possible.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/arena/arena.hpp"
#include "trace/by_block.hpp"
#include "trace/extremes.hpp"
#include "trace/trace.hpp"
#include "trace/untrusted_map.hpp"

namespace arena {

// The account after an event.
struct Sample {
  std::uint64_t event = 0;
  std::uint64_t time = 0;  // of the event, in nanoseconds
  Stats stats;
};

// When the most was live so far.
struct Height {
  std::uint64_t event = 0;
  std::uint64_t time = 0;
  Bytes live = 0, reserved = 0;
};

// Where a block comes from.
struct Origin {
  std::uint64_t time = 0;    // of its allocation
  std::uint64_t stream = 0;  // the handle of the recorded stream, or its number if the handle is unknown
};

// Where and why a trace did not fit.
struct Misfit {
  std::uint64_t event = 0;
  Failure failure;
};

class Replay {
 public:
  // In every bucket of `every` events it samples the account where the most and the least was live, and where the most
  // was reserved; and after the last event. `lines` maps the lines of the trace to those of the arena. If `moving`
  // allows it, live data is moved when nothing else makes room. `ended_by` is the failed request that ended the
  // recorded run, if any: the replay tries it and ends there, because after it the program only cleans up.
  Replay(std::shared_ptr<const Trace> trace, std::shared_ptr<Arena> arena, std::uint64_t every,
         UntrustedMap<Line> lines, Moving moving, std::optional<std::uint64_t> ended_by = std::nullopt);
  // Frees live blocks, and the streams.
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Replays at most so many events. False at the end, or when an allocation does not fit.
  bool step(std::uint64_t events);

  // How many events it replays, if everything fits.
  std::uint64_t end() const { return end_; }
  std::uint64_t done() const { return next_; }
  const std::optional<Misfit>& misfit() const { return misfit_; }
  const std::vector<Sample>& samples() const { return samples_; }
  // The event after which the most is live, if everything fits.
  std::uint64_t highest() const { return extremes_.highest; }
  const Height& peak() const { return peak_; }
  // The origins of live blocks, by address.
  std::vector<Origin> origins(const std::vector<std::uint64_t>& addresses) const;
  Arena& arena() { return *arena_; }

 private:
  struct Held {
    Block* block = nullptr;   // null: not live
    std::uint64_t event = 0;  // its allocation
  };

  void play(const TraceEvent& event);
  void allocate(const TraceEvent& event);
  Block* request(const TraceEvent& event);  // null if it does not fit
  bool is_tried() const { return next_ == ended_by_; }
  template <class Function>
  void each_live(const Function& function) const;
  void release(std::uint64_t block);    // if it is live
  void end_scope(std::uint64_t scope);  // if it was begun
  void watch(const TraceEvent& event);
  Sample sample(const TraceEvent& event) const { return {next_, event.time, arena_->stats(moving_)}; }
  void finish_bucket();
  cu::Stream stream_of(const TraceEvent& event) const { return streams_[event.stream % streams_.size()].get(); }
  Line line_of(const TraceEvent& event) const;

  void make_streams();
  std::shared_ptr<cu::StreamTag> new_stream();
  void keep_stream(const TraceEvent& event) const;

  std::shared_ptr<const Trace> trace_;
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<const Device> device_;                 // for new streams; null if only the default stream is used
  std::vector<std::shared_ptr<cu::StreamTag>> streams_;  // for the streams of the trace, modulo their number
  UntrustedMap<Line> lines_;
  std::uint64_t every_;
  Moving moving_;
  std::optional<std::uint64_t> ended_by_;
  std::uint64_t end_;
  std::uint64_t next_ = 0;
  ByBlock<Held> blocks_;
  Held tried_;  // the request that failed in the recorded run
  Bytes live_ = 0;
  Height peak_;
  UntrustedMap<std::shared_ptr<Scope>> scopes_;
  std::optional<Misfit> misfit_;
  Extremes extremes_;
  std::size_t due_ = 0;         // index of the next extreme
  std::vector<Sample> bucket_;  // samples of the current bucket; the first is where the most was reserved
  std::vector<Sample> samples_;
};

}  // namespace arena
