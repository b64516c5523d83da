#include "core/arena/ladder.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/arena/failure.hpp"
#include "core/arena/trimming.hpp"
#include "core/arena/waiting.hpp"
#include "core/backing/plain.hpp"

namespace arena {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kLongestWait{3};   // for memory in transit, or for threads that keep freeing
constexpr std::chrono::seconds kLongestWork{60};  // on the device: work that waits for the host would never finish
constexpr int kMostRounds = 128;                  // other threads may interfere in each
constexpr int kMostGranules = 1024;               // examined for a place that no other stream uses

}  // namespace

Block& Ladder::climb() {
  const RelaxedCapture relaxed(heap_.device);
  try {
    return climb_or_fail();
  } catch (const DriverError& error) {
    if (!heap_.fall_back(error, lock_)) throw;
    return climb_or_fail();
  }
}

Block& Ladder::climb_or_fail() {
  struct NotifyOnExit {
    std::condition_variable_any& moved;
    ~NotifyOnExit() { moved.notify_all(); }
  } const notify{heap_.memory_moved};
  heap_.limits.ask_before_growing(request_, lock_);
  if (request_.capture) heap_.limits.ask_device(request_, lock_);
  check_still_open(heap_, lock_);
  heap_.backing->forget_refusal();
  const auto deadline = steady_clock::now() + kLongestWait;
  while (true) {
    if (Block* block = try_steps()) return *block;
    // Memory that another thread is taking or releasing may be what the request needs.
    if (heap_.backing->in_transit() == 0 || Plain::is_in_upstream_call()) break;
    if (heap_.memory_moved.wait_until(lock_, deadline) == std::cv_status::timeout) break;
    check_still_open(heap_, lock_);
  }
  // An upstream that ran out of memory cannot be asked how much it has.
  const bool is_exhausted = heap_.settings.upstream && heap_.backing->was_refused();
  const Bytes most = is_exhausted ? heap_.gaps.largest_gap() : ~Bytes{0};
  fail(heap_, request_, lock_, {.most_now = most, .most_by_moving = most});
}

// Looks for a place again in every round, because other threads may have changed the heap while the lock was released.
// Memory that they free during a wait is waited for, too, but only up to a deadline: they may give the device work
// faster than it can finish it.
Block* Ladder::try_steps() {
  static constexpr Step kSteps[] = {Step::kUseFree, Step::kPoll, Step::kWait, Step::kRelease, Step::kReback};
  constexpr std::size_t kWait = 2;
  std::size_t next = 0;
  std::optional<steady_clock::time_point> deadline;  // after the first wait
  for (int round = 0; round < kMostRounds && next < std::size(kSteps); ++round) {
    heap_.flush_caches();
    Demand demand{.size = request_.rounded,
                  .place = heap_.best_place(request_.rounded),
                  .may_alias = request_.moving == Moving::kForbidden && !heap_.moves};
    // Upstream may hand out memory that this stream still uses, but no other.
    if (heap_.settings.upstream) demand.used.add(heap_.streams.mark(request_.index));
    if (request_.capture) return &take_in_capture(demand);
    const MayUnmap may_unmap = [this, known = std::optional<bool>()]() mutable {
      if (!known) known = !heap_.streams.any_capturing();
      return *known;
    };
    const Found found = take_free(demand, may_unmap);
    if (found.block != nullptr) return found.block;
    if (found.again) continue;
    if (!can_help(demand)) return nullptr;
    if (next == 0 && demand.place && must_wait(demand.place->offset)) {  // at its edges
      if (const std::optional<Offset> offset = back_with_new(demand)) return &take_at(*offset);
    }
    const bool may_wait_more = deadline && steady_clock::now() < *deadline;
    if (kSteps[next] == Step::kReback && heap_.backing->pending() > 0 && may_wait_more) next = kWait;
    const Step step = kSteps[next++];
    demand.may_unmap = may_unmap;
    if (step == Step::kReback) {
      const Readiness readiness = prepare_to_move(demand);
      if (readiness == Readiness::kNothingToMove) return nullptr;
      if (readiness == Readiness::kDisturbed) return try_without_moving();
    }
    const std::optional<Offset> offset = back(demand, step);
    check_still_open(heap_, lock_);
    if (step == Step::kWait && !deadline) deadline = steady_clock::now() + kLongestWait;
    if (offset && wait_for_last_users(*offset)) return &take_at(*offset);
  }
  return nullptr;
}

Block* Ladder::try_without_moving() {
  HeapRequest request = request_;
  request.moving = Moving::kForbidden;
  request.is_quiescent = nullptr;
  heap_.moves.store(false, std::memory_order_relaxed);
  return Ladder(heap_, request, lock_).try_steps();
}

Ladder::Found Ladder::take_free(const Demand& demand, const MayUnmap& may_unmap) {
  if (Block* block = take_stitched(demand, may_unmap)) return {block};
  if (demand.place && must_wait(demand.place->offset)) {  // its users may be done by now
    const EventScope scope = heap_.limits.is_near_cap() ? EventScope::kContexts : EventScope::kStreams;
    heap_.streams.poll(heap_.gaps.marks_of(*demand.place), scope);
  }
  if (const std::optional<Place> place = find_backed()) {
    if (!must_wait(place->offset)) return {&take_at(place->offset)};
    if (Block* block = take_shared(demand)) return {block};
    check_still_open(heap_, lock_);
    return {.again = true};
  }
  if (heap_.backing->drop_unused_aliases(may_unmap)) return {.again = true};
  // After a refusal, the device has less than the cap allows.
  if (heap_.backing->was_refused() && !heap_.settings.upstream && !request_.has_asked_device) {
    heap_.limits.ask_device(request_, lock_);
    check_still_open(heap_, lock_);
    return {.again = true};
  }
  return {};
}

// If memory is scarce and the request would add much to the memory in use, it is stitched together from free parts of
// that.
Block* Ladder::take_stitched(Demand demand, const MayUnmap& may_unmap) {
  if (!demand.place || !demand.may_alias) return nullptr;
  if (!heap_.is_wasteful(*demand.place, heap_.backing->span_of(demand.place->offset, demand.size))) return nullptr;
  if (!heap_.backing->find_better(demand, heap_.cap())) return nullptr;
  demand.may_unmap = may_unmap;
  const std::optional<Offset> offset = back(demand, Step::kUseFree);
  return offset && wait_for_last_users(*offset) ? &take_at(*offset) : nullptr;
}

// Other streams may still use the best place. Another place or new memory is better than waiting for them.
Block* Ladder::take_shared(const Demand& demand) {
  if (const std::optional<Place> place = find_unshared()) return &take_at(place->offset);
  if (const std::optional<Offset> offset = back_with_new(demand)) return &take_at(*offset);
  const std::optional<Place> place = find_backed();  // again: the lock may have been released
  if (!place) return nullptr;
  return wait_for_last_users(place->offset) ? &take_at(place->offset) : nullptr;
}

// The best place, if it is backed. With aliases, another place may be large enough only while they stay mapped.
std::optional<Place> Ladder::find_backed() const {
  const Backing& backing = *heap_.backing;
  std::optional<Place> place = heap_.best_place(request_.rounded);
  if (place && backing.is_backed(backing.span_of(place->offset, request_.rounded))) return place;
  if (backing.inactive() == 0 || backing.largest_free() < request_.rounded) return std::nullopt;
  place = backing.find_mapped(request_.rounded);
  return backing.is_backed(backing.span_of(place->offset, request_.rounded)) ? place : std::nullopt;
}

// A backed place that the stream need not wait for. The search is bounded, so that many gaps do not slow down a
// request.
std::optional<Place> Ladder::find_unshared() const {
  std::optional<Place> found;
  int left = kMostGranules;
  heap_.gaps.each_that_holds(request_.rounded, [&](const Gap& gap, std::uint32_t index) {
    if (const auto offset = heap_.backing->find_unshared(request_.user(), gap, request_.rounded, left)) {
      found = Place{.offset = *offset, .gap = index};
    }
    return found || left == 0;
  });
  return found;
}

bool Ladder::can_help(Demand& demand) {
  const Limits& limits = heap_.limits;
  const bool was_refused = heap_.backing->was_refused() && !heap_.settings.upstream;
  const Granules most = was_refused ? limits.reachable_with(limits.device_free()) : limits.reachable();
  if (heap_.backing->can_hold(demand, most, Moving::kForbidden)) return true;
  if (!heap_.backing->can_hold(demand, most, Moving::kAllowed)) return false;
  if (request_.moving == Moving::kForbidden) fail(heap_, request_, lock_, {.verdict = Verdict::kMovingForbidden});
  return true;
}

Ladder::Readiness Ladder::prepare_to_move(const Demand& demand) {
  if (!demand.may_unmap()) fail(heap_, request_, lock_, {.verdict = Verdict::kCapturing});
  if (request_.moving == Moving::kForbidden || heap_.backing->compactable() == 0) return Readiness::kNothingToMove;
  if (!synchronize_now(heap_)) fail(heap_, request_, lock_, {.verdict = Verdict::kCapturing});
  if (request_.is_quiescent != nullptr && !(*request_.is_quiescent)()) return Readiness::kDisturbed;
  heap_.backing->poll();
  return Readiness::kReady;
}

std::optional<Offset> Ladder::back(const Demand& demand, Step step) {
  if (step == Step::kWait) {
    wait_for_pending(heap_, lock_, kLongestWork);
    return std::nullopt;
  }
  try {
    return heap_.backing->back(demand, [this] { return heap_.limits.limit(); }, step, lock_);
  } catch (const Error&) {
    heap_.drop_lost_blocks();
    throw;
  }
}

std::optional<Offset> Ladder::back_with_new(const Demand& demand) {
  const auto offset = heap_.backing->back_with_new(demand, [this] { return heap_.limits.limit(); }, lock_);
  check_still_open(heap_, lock_);
  return offset;
}

bool Ladder::wait_for_last_users(Offset offset) {
  if (!must_wait(offset)) return true;
  const Span span = heap_.backing->span_of(offset, request_.rounded);
  const Marks marks = heap_.backing->marks_in(span, heap_.gaps.marks_at(offset));
  heap_.streams.poll(marks, EventScope::kContexts);
  if (request_.any_stream) {
    if (!must_wait(offset)) return true;
    if (!wait_for_device(heap_, lock_)) fail(heap_, request_, lock_, {.verdict = Verdict::kCapturing});
    return false;
  }
  if (heap_.streams.wait_on_device(request_.index, marks)) {
    heap_.allow_more_records();
    return true;
  }
  if (heap_.device.can_record_context() || !wait_for_device(heap_, lock_)) {  // a capture prevents it
    fail(heap_, request_, lock_, {.verdict = Verdict::kCapturing});
  }
  return false;
}

// In a capture, nothing may be unmapped, no event queried, and no work outside it waited for. So the request gets
// memory that the same stream freed or that is known to be done, or new memory.
Block& Ladder::take_in_capture(const Demand& demand) {
  std::optional<Place> place = find_backed();
  if (!place || must_wait(place->offset)) place = find_unshared();
  if (place) return take_at(place->offset);
  Demand fresh = demand;
  fresh.may_unmap = [] { return false; };
  fresh.device_free = heap_.limits.device_free();
  if (heap_.device.can_relax()) {
    if (const std::optional<Offset> offset = back_with_new(fresh)) return take_at(*offset);
  }
  const Backing& backing = *heap_.backing;
  const Granules most = heap_.limits.limit_with(heap_.limits.device_free());
  const Granules in_use = backing.reserved() - backing.spare();
  const Granules movable = heap_.device.can_relax() ? backing.compactable() : 0;  // if moved before the capture
  const auto left = [&](Granules used) { return (most > used ? most - used : 0) * backing.granule(); };
  fail(heap_, request_, lock_,
       {.verdict = Verdict::kCapturing, .most_now = left(in_use), .most_by_moving = left(in_use - movable)});
}

}  // namespace arena
