// Looking at the heap: the account, everything there is, and whether all of it is consistent. For callers that hold the arena's
// lock, and have flushed the heap for inspection where cached blocks should count as free.
#pragma once

#include <optional>

#include "core/backing/backing.hpp"
#include "core/heap/account.hpp"
#include "core/types.hpp"

namespace arena {

class Heap;

// What is known without asking the index of gaps.
Stats running_counts(const Heap& heap);
// With the largest request that would pass, with moving live data or without.
Stats stats_of(const Heap& heap, Moving moving);
Snapshot take_snapshot(Heap& heap, Moving moving);
// While it lives, the caches are flushed for inspection, and what streams have done is known as far as they can be asked.
class Inspection {
 public:
  explicit Inspection(Heap& heap);

 private:
  std::optional<Backing::TemporaryPoll> poll_;
};
// Throws Error that says which invariant does not hold.
void check(const Heap& heap);

}  // namespace arena
