// Writes events as records into chunks, whether they happen now or come from a trace. format.hpp has the records.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "core/heap/events.hpp"

namespace arena {

inline constexpr std::size_t kChunkBytes = std::size_t{1} << 18;  // from which a chunk is full

// What a reader needs to know before it reads the records.
struct Chunk {
  std::uint64_t first_event = 0;  // of the recording
  std::uint64_t events = 0;
  std::uint64_t next_block = 0;  // the one that is allocated next
  std::uint64_t time = 0;        // nanoseconds since the recording began
  std::vector<std::uint8_t> bytes;
  std::vector<Line> lines;  // that are named here for the first time
};

class Encoder {
 public:
  Encoder();
  // Whether the chunk has to be taken before this event: blocks are numbered from the chunk's first one.
  bool must_part(const Event& event) const;
  // `time` is in nanoseconds since the recording began.
  void write(const Event& event, std::uint64_t thread, std::uint64_t time);
  // The chunk so far; a new one begins.
  Chunk take();

  bool is_empty() const { return chunk_.bytes.empty(); }
  bool is_full() const { return chunk_.bytes.size() >= kChunkBytes; }
  std::uint64_t events() const { return events_; }

 private:
  void begin_chunk(const Event& event);
  bool is_first(StreamIndex stream);

  Chunk chunk_;
  std::uint64_t last_ = 0;  // time of the record before
  std::uint64_t thread_ = 0, next_block_ = 0, events_ = 0;
  std::vector<bool> streams_;       // named in this chunk
  std::unordered_set<Line> lines_;  // named in this recording
};

}  // namespace arena
