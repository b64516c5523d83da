// Why a request fails, and what would have passed.
#pragma once

#include <optional>
#include <string>

#include "core/heap/heap.hpp"

namespace arena {

struct Reason {
  std::optional<Verdict> verdict = {};  // none: found out
  const Scope* exceeded = nullptr;      // whose budget is reached
  // What the request could get at most for reasons of its own: as things are, and if live data could be moved.
  Bytes most_now = ~Bytes{0};
  Bytes most_by_moving = ~Bytes{0};
};

// Throws OutOfMemory.
[[noreturn]] void fail(Heap& heap, const Request& request, Lock& lock, const Reason& reason = {});
// Fails if the request, which is in a scope, exceeds the budget of one that it is in.
void check_budget(Heap& heap, const Request& request, Lock& lock);

}  // namespace arena
