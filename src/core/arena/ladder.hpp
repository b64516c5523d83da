// The ladder of steps that a request climbs on a miss, each more expensive than the one before.
//
// The order of preference: memory that was last used on the same stream, or whose users are known to be done; new
// memory, within the cap; only then memory that another stream may still be using, after a wait on the device.
#pragma once

#include <functional>
#include <optional>

#include "core/heap/heap.hpp"

namespace arena {

class Ladder {
 public:
  Ladder(Heap& heap, const HeapRequest& request, Lock& lock) : heap_(heap), request_(request), lock_(lock) {}

  // Throws OutOfMemory. May release and retake the lock.
  Block& climb();

 private:
  using MayUnmap = std::function<bool()>;

  Block& climb_or_fail();
  Block* try_steps();
  Block* try_without_moving();

  // A block from free memory. `again`: try again, because something has changed.
  struct Found {
    Block* block = nullptr;
    bool again = false;
  };
  Found take_free(const Demand& demand, const MayUnmap& may_unmap);
  Block* take_stitched(Demand demand, const MayUnmap& may_unmap);
  Block* take_shared(const Demand& demand);
  std::optional<Place> find_backed() const;
  std::optional<Place> find_unshared() const;

  // Whether any step could help; fails if only moving could and is forbidden.
  bool can_help(Demand& demand);
  enum class Readiness { kReady, kNothingToMove, kDisturbed };
  Readiness prepare_to_move(const Demand& demand);
  std::optional<Offset> back(const Demand& demand, Step step);
  std::optional<Offset> back_with_new(const Demand& demand);
  // Makes the stream wait on the device, or waits on the host. False if that released the lock.
  bool wait_for_last_users(Offset offset);

  Block& take_in_capture(const Demand& demand);
  Block& take_at(Offset offset) { return heap_.take_at(offset, request_); }
  bool must_wait(Offset offset) const { return heap_.must_wait(request_, offset); }

  Heap& heap_;
  const HeapRequest& request_;
  Lock& lock_;
};

}  // namespace arena
