// Records the events of an arena as chunks of bytes, for another thread to write to a file.
//
// An event costs reading the clock and writing a few bytes to a buffer. Full chunks are queued; if too many wait to be
// taken, the recording ends and the program continues.
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

  // Waits for the next full chunk; after `wait`, returns a partial one. nullopt if there are no events. Call it without
  // any lock.
  std::optional<Chunk> next(std::chrono::milliseconds wait);
  // Records no more events; the remaining chunks can still be taken.
  void end();
  std::uint64_t events() const;
  // Whether it ended by itself, because too many chunks were waiting.
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
