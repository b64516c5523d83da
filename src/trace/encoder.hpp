// Writes events into chunks of bytes, either live or from a trace. format.hpp describes the records.
#pragma once

#include <cstdint>
#include <vector>

#include "core/heap/events.hpp"
#include "trace/untrusted_map.hpp"

namespace arena {

inline constexpr std::size_t kChunkBytes = std::size_t{1} << 18;  // a chunk is full from this size on

// Records, and what a reader needs to know before it reads them.
struct Chunk {
  std::uint64_t first_event = 0;  // of the recording
  std::uint64_t events = 0;
  std::uint64_t next_block = 0;  // number of the next block to be allocated
  std::uint64_t time = 0;        // nanoseconds since the recording began
  std::vector<std::uint8_t> bytes;
  std::vector<Line> lines;  // that appear here for the first time
};

class Encoder {
 public:
  Encoder();
  // Whether the chunk must be taken before this event, because the numbers of its blocks are not consecutive.
  bool needs_new_chunk(const Event& event) const;
  // `time` is in nanoseconds since the recording began.
  void write(const Event& event, std::uint64_t thread, std::uint64_t time);
  // Returns the current chunk and begins a new one.
  Chunk take();

  bool is_empty() const { return chunk_.bytes.empty(); }
  bool is_full() const { return chunk_.bytes.size() >= kChunkBytes; }
  std::uint64_t events() const { return events_; }

 private:
  void begin_chunk(const Event& event);
  bool is_first(StreamIndex stream);

  Chunk chunk_;
  std::uint64_t last_ = 0;  // time of the last record
  std::uint64_t thread_ = 0, next_block_ = 0, events_ = 0;
  std::vector<bool> streams_;  // written in this chunk
  UntrustedSet lines_;         // written in this recording
};

}  // namespace arena
