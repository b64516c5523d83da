// A recorded trace in memory: the events in order, the handles of its streams, and the names of its scopes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.hpp"
#include "trace/encoder.hpp"
#include "trace/event_store.hpp"
#include "trace/untrusted_map.hpp"

namespace arena {

// A trace that cannot be read; the text says where.
class TraceError : public Error {
 public:
  using Error::Error;
};

// Whether it is valid UTF-8, as strictly as in Python: no overlong forms and no surrogates.
bool is_utf8(std::string_view bytes);

inline constexpr std::uint64_t kStreamNumbers = 1 << 20;  // of a trace

class Trace {
 public:
  // `room` is how much memory it may take: a small compressed file may hold any number of events.
  explicit Trace(Bytes room = ~Bytes{0}) : room_(room), left_(room) {}

  // Appends the events of a chunk. On an error, keeps those read so far and throws TraceError.
  void add_chunk(std::uint64_t next_block, std::uint64_t time, const std::uint8_t* data, std::size_t size);
  // Appends one event.
  void add(const TraceEvent& event) {
    take_room(kEventCost);
    events_.push_back(event);
  }
  // Encodes one chunk of events, beginning with event `first`. Use the same encoder for the next chunk.
  Chunk encode(Encoder& encoder, std::uint64_t first) const;

  const EventStore& events() const { return events_; }
  // The handle of a stream, by its number; 0 if unknown.
  std::uint64_t handle_of(std::uint32_t stream) const { return is_known(stream) ? handles_[stream] : 0; }
  // Whether it is one of the default streams. If the handle is unknown, stream 0 is.
  bool is_default(std::uint32_t stream) const {
    return is_known(stream) ? handles_[stream] <= kHighestDefault : stream == 0;
  }
  void set_handle(std::uint32_t stream, std::uint64_t handle);
  const std::string& scope_name(std::uint64_t scope) const;
  std::uint32_t streams() const { return streams_; }
  void set_streams(std::uint32_t count) { streams_ = std::max(streams_, count); }

 private:
  static constexpr Bytes kEventCost = 96;  // an uncompressed event, and what readers keep for it
  void take_room(Bytes size);

  static constexpr std::uint64_t kUnknown = ~std::uint64_t{0};
  static constexpr std::uint64_t kHighestDefault = 2;  // the null stream, the legacy and the per-thread one
  std::uint64_t written_handle(std::uint32_t stream) const {
    return stream < handles_.size() ? handles_[stream] : kUnknown;
  }
  bool is_known(std::uint32_t stream) const { return written_handle(stream) != kUnknown; }

  EventStore events_;
  std::vector<std::uint64_t> handles_;
  UntrustedMap<std::string> scopes_;  // names, by number
  std::uint32_t streams_ = 0;
  Bytes room_, left_;
};

}  // namespace arena
