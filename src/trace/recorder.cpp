#include "trace/recorder.hpp"

#include <atomic>

namespace arena {
namespace {

constexpr std::size_t kMostWaiting = 256;  // chunks: 64 MiB

std::uint64_t now() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

std::uint64_t this_thread() {
  static std::atomic<std::uint64_t> next{0};
  thread_local const std::uint64_t number = next.fetch_add(1);
  return number;
}

}  // namespace

Recorder::Recorder() : begin_(now()) {}

void Recorder::on_event(const Event& event) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    if (encoder_.needs_new_chunk(event)) finish_chunk();
    if (ended_) return;
    encoder_.write(event, this_thread(), now() - begin_);
    if (encoder_.is_full()) finish_chunk();
  } catch (...) {  // no memory for the buffer: the program is more important than the recording
    ended_ = overflowed_ = true;
  }
}

void Recorder::finish_chunk() {
  if (encoder_.is_empty()) return;
  if (full_.size() >= kMostWaiting) {
    ended_ = overflowed_ = true;
    return;
  }
  full_.push_back(encoder_.take());
  ready_.notify_one();
}

std::optional<Chunk> Recorder::next(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  ready_.wait_for(lock, wait, [&] { return !full_.empty() || ended_; });
  if (full_.empty()) finish_chunk();
  if (full_.empty()) return std::nullopt;
  Chunk chunk = std::move(full_.front());
  full_.pop_front();
  return chunk;
}

void Recorder::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  ready_.notify_all();
}

std::uint64_t Recorder::events() const {
  const std::lock_guard lock(mutex_);
  return encoder_.events();
}

bool Recorder::overflowed() const {
  const std::lock_guard lock(mutex_);
  return overflowed_;
}

}  // namespace arena
