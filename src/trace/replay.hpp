// Runs a trace through an arena, event by event, as fast as the arena goes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/arena.hpp"
#include "trace/trace.hpp"

namespace arena {

// The account after an event.
struct Sample {
  std::uint64_t event = 0;
  std::uint64_t time = 0;  // of the event, in nanoseconds
  Stats stats;
};

// Where and why a trace did not fit.
struct Misfit {
  std::uint64_t event = 0;
  std::string text, verdict;
  Bytes requested = 0, largest = 0;
  Stats stats;
};

class Replay {
 public:
  // Takes a sample of the account after every so many events, and after the last.
  Replay(std::shared_ptr<const Trace> trace, std::shared_ptr<Arena> arena, std::uint64_t every);
  // Frees what is live, and the streams.
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Goes on for at most so many events. False at the end, or when an allocation does not fit.
  bool step(std::uint64_t events);

  std::uint64_t done() const { return next_; }
  const std::optional<Misfit>& misfit() const { return misfit_; }
  const std::vector<Sample>& samples() const { return samples_; }
  Arena& arena() { return *arena_; }

 private:
  void play(const TraceEvent& event);
  void sample(const TraceEvent& event);
  cu::Stream stream_of(const TraceEvent& event) const { return streams_[event.stream % streams_.size()]; }

  void make_streams();

  std::shared_ptr<const Trace> trace_;
  std::shared_ptr<Arena> arena_;
  std::vector<cu::Stream> streams_;  // for those of the trace, in turn
  std::uint64_t every_;
  std::uint64_t next_ = 0;
  std::unordered_map<std::uint64_t, std::uint64_t> addresses_;  // of blocks
  std::unordered_map<std::uint64_t, std::shared_ptr<Scope>> scopes_;
  std::optional<Misfit> misfit_;
  std::vector<Sample> samples_;
};

}  // namespace arena
