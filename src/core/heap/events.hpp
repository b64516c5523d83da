// What happens in an arena, for an observer that records it.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/streams/marks.hpp"
#include "core/types.hpp"

namespace arena {

enum class EventKind : std::uint8_t {
  kAllocate = 1,
  kFree,
  kRecordStream,
  kFailure,   // a request that could not be met
  kReserved,  // so much is reserved from now on
  kTrim,      // calls of the program: this and the next five
  kCompact,
  kReserve,
  kSetCap,
  kScopeBegin,
  kScopeEnd,
};

constexpr bool names_stream(EventKind kind) {
  return kind == EventKind::kAllocate || kind == EventKind::kRecordStream || kind == EventKind::kFailure;
}

struct Event {
  EventKind kind;
  std::uint64_t block = 0;  // its serial number; while there is an observer, consecutive
  Bytes size = 0;           // asked for; reserved; a cap; a budget, all ones if there is none
  StreamIndex stream = 0;
  std::uint64_t cu_stream = 0;  // the stream's own number
  Line line = 0;
  std::uint64_t scope = 0;  // its number
  std::string_view name = {};
};

// Called with the arena's lock held: must be quick, call nothing else, and not throw.
class Observer {
 public:
  Observer() = default;
  virtual ~Observer() = default;
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;
  virtual void on_event(const Event& event) noexcept = 0;
};

}  // namespace arena
