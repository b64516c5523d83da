#include "trace/recorder.hpp"

#include <algorithm>
#include <atomic>

#include "trace/format.hpp"

namespace arena {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 18;
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

Recorder::Recorder() : begin_(now()), last_(begin_) { chunk_.bytes.reserve(kChunkBytes + 256); }

void Recorder::note(const Event& event) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    write(event, now());
    if (chunk_.bytes.size() >= kChunkBytes) finish_chunk();
  } catch (...) {  // no memory for the buffer: the program matters more
    ended_ = overflowed_ = true;
  }
}

namespace {

// One record, put together on the stack: a number takes at most 10 bytes.
class Record {
 public:
  void byte(std::uint8_t value) { bytes_[size_++] = value; }
  void number(std::uint64_t value) {
    while (value >= 0x80) {
      byte(static_cast<std::uint8_t>(value | 0x80));
      value >>= 7;
    }
    byte(static_cast<std::uint8_t>(value));
  }
  const std::uint8_t* begin() const { return bytes_; }
  const std::uint8_t* end() const { return bytes_ + size_; }

 private:
  std::uint8_t bytes_[96];
  std::size_t size_ = 0;
};

bool has_size(EventKind kind) {
  using enum EventKind;
  return kind == kAllocate || kind == kFailure || kind == kReserved || kind == kReserve || kind == kSetCap;
}

}  // namespace

void Recorder::begin_chunk(const Event& event) {
  using enum EventKind;
  if (event.kind == kAllocate) next_block_ = event.block;
  if (event.kind == kFree || event.kind == kRecordStream) next_block_ = std::max(next_block_, event.block + 1);
  chunk_.first_event = events_;
  chunk_.next_block = next_block_;
  chunk_.time = last_ - begin_;
  thread_ = ~std::uint64_t{0};
}

void Recorder::write(const Event& event, std::uint64_t time) {
  using enum EventKind;
  if (event.kind == kAllocate && event.block != next_block_ && !chunk_.bytes.empty()) finish_chunk();
  if (chunk_.bytes.empty()) begin_chunk(event);
  Record record;
  if (names_stream(event.kind) && is_first(event.stream)) {
    record.byte(kStreamRecord);
    record.number(0);
    record.number(event.stream);
    record.number(event.handle);
  }
  const std::uint64_t thread = this_thread();
  const bool has_line = event.line != 0 && (event.kind == kAllocate || event.kind == kFailure);
  record.byte(static_cast<std::uint8_t>(static_cast<std::uint8_t>(event.kind) | (thread != thread_ ? kHasThread : 0) |
                                        (has_line ? kHasLine : 0)));
  record.number(time - last_);
  if (thread != thread_) record.number(thread);
  thread_ = thread;
  last_ = time;
  if (event.kind == kFree || event.kind == kRecordStream) record.number(next_block_ - event.block);
  if (event.kind == kScopeBegin || event.kind == kScopeEnd) record.number(event.scope);
  if (event.kind == kScopeBegin) record.number(event.size + 1);
  if (has_size(event.kind)) record.number(event.size);
  if (names_stream(event.kind)) record.number(event.stream);
  if (has_line) {
    record.number(event.line);
    if (lines_.insert(event.line).second) chunk_.lines.push_back(event.line);
  }
  if (event.kind == kScopeBegin) record.number(event.name.size());
  chunk_.bytes.insert(chunk_.bytes.end(), record.begin(), record.end());
  chunk_.bytes.insert(chunk_.bytes.end(), event.name.begin(), event.name.end());
  if (event.kind == kAllocate) next_block_ = event.block + 1;
  ++events_;
  ++chunk_.events;
}

// Whether a stream has not been named in this chunk.
bool Recorder::is_first(StreamIndex stream) {
  if (streams_.size() <= stream) streams_.resize(stream + 1);
  const bool first = !streams_[stream];
  streams_[stream] = true;
  return first;
}

void Recorder::finish_chunk() {
  if (chunk_.bytes.empty()) return;
  if (full_.size() >= kMostWaiting) {
    ended_ = overflowed_ = true;
    return;
  }
  full_.push_back(std::move(chunk_));
  chunk_ = {};
  chunk_.bytes.reserve(kChunkBytes + 256);
  streams_.clear();
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
  return events_;
}

bool Recorder::overflowed() const {
  const std::lock_guard lock(mutex_);
  return overflowed_;
}

}  // namespace arena
