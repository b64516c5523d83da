// Writes down what happens in an arena, as chunks of bytes that somebody else puts into a file.
//
// An event costs a look at the clock and a few bytes in a buffer. Full buffers wait to be taken; if nobody takes them,
// the recording ends, and the program goes on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

#include "core/events.hpp"

namespace arena {

// What a reader needs to know before it reads the records.
struct Chunk {
  std::uint64_t first_event = 0;  // of the recording
  std::uint64_t events = 0;
  std::uint64_t next_block = 0;  // the one that is allocated next
  std::uint64_t time = 0;        // nanoseconds since the recording began
  std::vector<std::uint8_t> bytes;
  std::vector<Line> lines;  // that are named here for the first time
};

class Recorder final : public Observer {
 public:
  Recorder();
  void note(const Event& event) noexcept override;

  // The next chunk, full or, after a while, not; nothing after the end. Waits; to be called without any lock.
  std::optional<Chunk> next(std::chrono::milliseconds wait);
  // No more events are noted; what there is can still be taken.
  void end();
  std::uint64_t events() const;
  // Whether it ended by itself, because nobody took the chunks.
  bool overflowed() const;

 private:
  void begin_chunk(const Event& event);
  void write(const Event& event, std::uint64_t time);
  bool is_first(StreamIndex stream);
  void finish_chunk();

  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Chunk> full_;
  Chunk chunk_;
  std::uint64_t begin_ = 0, last_ = 0;  // on the steady clock
  std::uint64_t thread_ = 0, next_block_ = 0, events_ = 0;
  std::vector<bool> streams_;       // named in this chunk
  std::unordered_set<Line> lines_;  // named in this recording
  bool ended_ = false, overflowed_ = false;
};

}  // namespace arena
