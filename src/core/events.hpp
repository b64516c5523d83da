// What happens in an arena, for whoever keeps a record of it.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/marks.hpp"
#include "core/types.hpp"

namespace arena {

using Line = std::uint32_t;  // of the program, as whoever asks for memory numbers them; 0 for none

enum class EventKind : std::uint8_t {
  kAllocate = 1,
  kFree,
  kRecordStream,
  kFailure,   // a request that could not be met
  kReserved,  // so much is reserved from now on
  kTrim,      // what somebody asked for: this and the next four
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
  std::uint64_t block = 0;  // its number; while somebody is told, one by one
  Bytes size = 0;           // asked for; reserved; a cap; a budget, all ones if there is none
  StreamIndex stream = 0;
  std::uint64_t handle = 0;  // the stream's own number
  Line line = 0;
  std::uint64_t scope = 0;  // its number
  std::string_view name = {};
};

// Called with the arena's lock held: must be quick, call nobody, and not throw.
class Observer {
 public:
  Observer() = default;
  virtual ~Observer() = default;
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;
  virtual void note(const Event& event) noexcept = 0;
};

}  // namespace arena
