// Decides why a request fails, and what would have passed.
#pragma once

#include <optional>
#include <string>

#include "core/heap/heap.hpp"

namespace arena {

struct Reason {
  std::optional<Verdict> verdict = {};  // nullopt: fail() finds it out
  const Scope* exceeded = nullptr;      // the scope whose budget is reached
  // Upper bounds on what the request could get, without and with moving live data.
  Bytes most_now = ~Bytes{0};
  Bytes most_by_moving = ~Bytes{0};
};

// Throws OutOfMemory.
[[noreturn]] void fail(Heap& heap, const HeapRequest& request, Lock& lock, const Reason& reason = {});
// Fails if the request would exceed the budget of its scope or of one around it.
void check_budget(Heap& heap, const HeapRequest& request, Lock& lock);

}  // namespace arena
