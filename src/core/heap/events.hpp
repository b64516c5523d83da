// The events of an arena, for an observer that records them.
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
  kReserved,  // the amount of reserved memory has changed
  kTrim,      // this and the next five are calls of the program
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
  std::uint64_t block = 0;  // its serial number; consecutive while there is an observer
  Bytes size = 0;           // requested; reserved; a cap; or a budget, ~0 if there is none
  StreamIndex stream = 0;
  std::uint64_t cu_stream = 0;  // the CUstream as a number
  Line line = 0;
  std::uint64_t scope = 0;  // its number
  std::string_view name = {};
};

// Called with the arena's lock held: must be quick, must not call the arena, and must not throw.
class Observer {
 public:
  Observer() = default;
  virtual ~Observer() = default;
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;
  virtual void on_event(const Event& event) noexcept = 0;
};

}  // namespace arena
