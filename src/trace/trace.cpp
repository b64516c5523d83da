#include "trace/trace.hpp"

#include <string_view>
#include <utility>

#include "base/units.hpp"
#include "trace/format.hpp"

namespace arena {

bool is_utf8(std::string_view bytes) {
  for (std::size_t i = 0; i < bytes.size();) {
    const auto byte = [&](std::size_t at) { return at < bytes.size() ? static_cast<std::uint8_t>(bytes[at]) : 0u; };
    const unsigned first = byte(i++);
    if (first < 0x80) continue;
    const unsigned more = first >= 0xc2 && first < 0xe0   ? 1
                          : first >> 4 == 0xe             ? 2
                          : first >= 0xf0 && first < 0xf5 ? 3
                                                          : 0;
    if (more == 0) return false;
    std::uint32_t character = first & (0x3f >> more);
    for (unsigned k = 0; k < more; ++k) {
      const unsigned next = byte(i++);
      if (next >> 6 != 2) return false;
      character = character << 6 | (next & 0x3f);
    }
    if ((more == 2 && (character < 0x800 || character >> 11 == 0x1b)) || character > 0x10ffff) return false;
    if (more == 3 && character < 0x10000) return false;
  }
  return true;
}

namespace {

// Reads numbers from untrusted bytes.
class Reader {
 public:
  Reader(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool at_end() const { return at_ == size_; }
  std::size_t place() const { return at_; }

  std::uint8_t byte() {
    if (at_ == size_) fail("the chunk ends inside a record");
    return data_[at_++];
  }
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const std::uint8_t next = byte();
      value |= static_cast<std::uint64_t>(next & 0x7f) << shift;
      if (next < 0x80) return value;
    }
    fail("a number of more than 64 bits");
  }
  std::string text(std::uint64_t length) {
    if (length > size_ - at_) fail("a name that is longer than the chunk");
    std::string found(reinterpret_cast<const char*>(data_ + at_), length);
    if (!is_utf8(found)) fail("a name that is not valid UTF-8");
    at_ += length;
    return found;
  }
  [[noreturn]] void fail(const std::string& text) const {
    throw TraceError("byte " + std::to_string(at_) + " of the chunk: " + text);
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

}  // namespace

const std::string& Trace::scope_name(std::uint64_t scope) const {
  static const std::string none;
  const auto it = scopes_.find(scope);
  return it == scopes_.end() ? none : it->second;
}

void Trace::set_handle(std::uint32_t stream, std::uint64_t handle) {
  if (handles_.size() <= stream) handles_.resize(stream + 1, kUnknown);
  handles_[stream] = handle;
}

void Trace::take_room(Bytes size) {
  if (size > left_) throw TraceError("the trace would take more than the " + format_bytes(room_) + " of memory left");
  left_ -= size;
}

Chunk Trace::encode(Encoder& encoder, std::uint64_t first) const {
  using enum EventKind;
  for (std::uint64_t i = first; i < events_.size() && !encoder.is_full(); ++i) {
    const TraceEvent e = events_[i];
    const bool is_scope = e.kind == kScopeBegin || e.kind == kScopeEnd;
    Event event{.kind = e.kind,
                .block = e.block,
                .size = e.size,
                .stream = e.stream,
                .cu_stream = written_handle(e.stream),
                .line = e.line};
    if (is_scope) event.scope = e.block;
    if (e.kind == kScopeBegin) event.name = scope_name(e.block);
    if (encoder.needs_new_chunk(event)) break;
    encoder.write(event, e.thread, e.time);
  }
  return encoder.take();
}

void Trace::add_chunk(std::uint64_t next_block, std::uint64_t time, const std::uint8_t* data, std::size_t size) {
  using enum EventKind;
  Reader reader(data, size);
  std::uint64_t thread = 0;
  std::string name;
  const auto stream = [&] {
    const std::uint64_t number = reader.number();
    if (number >= kStreamNumbers) reader.fail("stream " + std::to_string(number) + " of at most 1048576");
    streams_ = std::max(streams_, static_cast<std::uint32_t>(number + 1));
    return static_cast<std::uint32_t>(number);
  };
  while (!reader.at_end()) {
    const std::uint8_t head = reader.byte();
    if (head == kStreamRecord) {
      reader.number();
      const std::uint32_t number = stream();
      set_handle(number, reader.number());
      continue;
    }
    TraceEvent event;
    const std::uint8_t kind = head & kKindBits;
    if (kind < static_cast<std::uint8_t>(kAllocate) || kind > static_cast<std::uint8_t>(kScopeEnd)) {
      reader.fail("no such kind of record: " + std::to_string(kind));
    }
    event.kind = static_cast<EventKind>(kind);
    event.time = time += reader.number();
    if ((head & kHasThread) != 0) thread = reader.number();
    event.thread = static_cast<std::uint32_t>(thread);
    const auto earlier_block = [&] {
      const std::uint64_t back = reader.number();
      if (back == 0 || back > next_block) reader.fail("a block that was not allocated before");
      return next_block - back;
    };
    switch (event.kind) {
      case kAllocate:
      case kFailure:
        event.size = reader.number();
        event.stream = stream();
        if ((head & kHasLine) != 0) event.line = static_cast<Line>(reader.number());
        if (event.kind == kAllocate) event.block = next_block++;
        break;
      case kFree:
        event.block = earlier_block();
        break;
      case kRecordStream:
        event.block = earlier_block();
        event.stream = stream();
        break;
      case kReserved:
      case kReserve:
      case kSetCap:
        event.size = reader.number();
        break;
      case kScopeBegin:
        event.block = reader.number();
        event.size = reader.number() - 1;
        name = reader.text(reader.number());
        take_room(name.size());
        scopes_[event.block] = std::move(name);
        break;
      case kScopeEnd:
        event.block = reader.number();
        break;
      case kTrim:
      case kCompact:
        break;
    }
    add(event);
  }
}

}  // namespace arena
