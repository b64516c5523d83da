#include "trace/encoder.hpp"

#include <algorithm>

#include "trace/format.hpp"

namespace arena {
namespace {

// One record, assembled on the stack: a number takes at most 10 bytes.
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

bool names_block(EventKind kind) { return kind == EventKind::kFree || kind == EventKind::kRecordStream; }

bool has_size(EventKind kind) {
  using enum EventKind;
  return kind == kAllocate || kind == kFailure || kind == kReserved || kind == kReserve || kind == kSetCap;
}

}  // namespace

Encoder::Encoder() { chunk_.bytes.reserve(kChunkBytes + 256); }

bool Encoder::needs_new_chunk(const Event& event) const {
  if (is_empty()) return false;
  if (event.kind == EventKind::kAllocate) return event.block != next_block_;
  return names_block(event.kind) && event.block >= next_block_;
}

void Encoder::begin_chunk(const Event& event) {
  if (event.kind == EventKind::kAllocate) next_block_ = event.block;
  if (names_block(event.kind)) next_block_ = std::max(next_block_, event.block + 1);
  chunk_.first_event = events_;
  chunk_.next_block = next_block_;
  chunk_.time = last_;
  thread_ = ~std::uint64_t{0};
}

void Encoder::write(const Event& event, std::uint64_t thread, std::uint64_t time) {
  using enum EventKind;
  if (is_empty()) begin_chunk(event);
  Record record;
  if (names_stream(event.kind) && is_first(event.stream)) {
    record.byte(kStreamRecord);
    record.number(0);
    record.number(event.stream);
    record.number(event.cu_stream);
  }
  const bool has_line = event.line != 0 && (event.kind == kAllocate || event.kind == kFailure);
  record.byte(static_cast<std::uint8_t>(static_cast<std::uint8_t>(event.kind) | (thread != thread_ ? kHasThread : 0) |
                                        (has_line ? kHasLine : 0)));
  record.number(time - last_);
  if (thread != thread_) record.number(thread);
  thread_ = thread;
  last_ = time;
  if (names_block(event.kind)) record.number(next_block_ - event.block);
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

// Whether this is the first record of a stream in this chunk.
bool Encoder::is_first(StreamIndex stream) {
  if (streams_.size() <= stream) streams_.resize(stream + 1);
  const bool first = !streams_[stream];
  streams_[stream] = true;
  return first;
}

Chunk Encoder::take() {
  Chunk taken = std::move(chunk_);
  chunk_ = {};
  chunk_.bytes.reserve(kChunkBytes + 256);
  streams_.clear();
  return taken;
}

}  // namespace arena
