// Inspects the heap: the account, a snapshot, and whether everything is consistent. Callers hold the arena's lock, and
// flush the heap for inspection if cached blocks should count as free.
#pragma once

#include <optional>

#include "core/backing/backing.hpp"
#include "core/heap/account.hpp"
#include "core/types.hpp"

namespace arena {

class Heap;

// Without `device_free` and the `largest` figures, so it is fast.
Stats running_counts(const Heap& heap);
Stats stats_of(const Heap& heap, Moving moving);
Snapshot take_snapshot(Heap& heap, Moving moving);
// Flushes the caches for inspection and polls the streams, if no capture prevents that. At the end the answers of the
// streams are forgotten; the next lock restores the caches.
class Inspection {
 public:
  explicit Inspection(Heap& heap);

 private:
  std::optional<Backing::TemporaryPoll> poll_;
};
// Throws an Error that names the invariant that does not hold.
void check(const Heap& heap);

}  // namespace arena
