// A recorded trace in memory: the events in order, small enough to hold millions of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "core/events.hpp"

namespace arena {

// A trace that cannot be read; the text says where.
class TraceError : public Error {
 public:
  using Error::Error;
};

struct TraceEvent {
  EventKind kind = EventKind::kAllocate;
  std::uint32_t thread = 0;
  std::uint32_t stream = 0;
  Line line = 0;
  std::uint64_t time = 0;   // nanoseconds since the beginning
  std::uint64_t block = 0;  // or the number of a scope
  Bytes size = 0;
};

class Trace {
 public:
  // Appends the events of a chunk. Throws TraceError, after those that could be read.
  void add_chunk(std::uint64_t next_block, std::uint64_t time, const std::uint8_t* data, std::size_t size);
  // Appends one event of a trace that comes from elsewhere.
  void add(const TraceEvent& event) { events_.push_back(event); }

  const std::vector<TraceEvent>& events() const { return events_; }
  // The handle that a stream had, by its number; 0 if it is not known.
  std::uint64_t handle_of(std::uint32_t stream) const { return stream < handles_.size() ? handles_[stream] : 0; }
  const std::string& scope_name(std::uint64_t scope) const;
  std::uint32_t streams() const { return streams_; }
  void set_streams(std::uint32_t count) { streams_ = std::max(streams_, count); }

 private:
  std::vector<TraceEvent> events_;
  std::vector<std::uint64_t> handles_;
  std::vector<std::pair<std::uint64_t, std::string>> scopes_;
  std::uint32_t streams_ = 0;
};

}  // namespace arena
