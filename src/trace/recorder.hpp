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

#include "trace/encoder.hpp"

namespace arena {

class Recorder final : public Observer {
 public:
  Recorder();
  void on_event(const Event& event) noexcept override;

  // The next chunk, full or, after a while, not; nothing after the end. Waits; to be called without any lock.
  std::optional<Chunk> next(std::chrono::milliseconds wait);
  // No more events are noted; what there is can still be taken.
  void end();
  std::uint64_t events() const;
  // Whether it ended by itself, because nobody took the chunks.
  bool overflowed() const;

 private:
  void finish_chunk();

  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Chunk> full_;
  Encoder encoder_;
  std::uint64_t begin_;  // on the steady clock
  bool ended_ = false, overflowed_ = false;
};

}  // namespace arena
