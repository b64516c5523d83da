#include "core/arena/failure.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "core/heap/inspect.hpp"

namespace arena {
namespace {

Verdict why_full(const Heap& heap, Bytes rounded) {
  using enum Verdict;
  const Backing& backing = *heap.backing;
  const Bytes granule = backing.granule();
  const Granules most = heap.limits.limit_with(heap.limits.device_free()), cap = heap.limits.cap();
  const bool has_headroom = heap.settings.headroom > 0;
  if (backing.was_refused()) return has_headroom && most < cap ? kHeadroomKept : kDeviceFull;
  const Bytes left = most * granule > heap.reserved() ? most * granule - heap.reserved() : 0;
  if (backing.in_transit() > 0) return kInTransit;
  if (heap.is_plain && heap.reserved() - running_counts(heap).live + left >= rounded) return kFragmented;
  const std::optional<Place> place = heap.gaps.find(rounded);
  const Granules fixed = backing.touched() + backing.pinned();
  if (!heap.is_plain && !place && fixed + backing.span_of(0, rounded).count() <= most) return kTooFewAddresses;
  if (backing.pinned() > 0 && place && backing.touched() + place->new_granules <= most) return kPinned;
  if (most < cap) return has_headroom ? kHeadroomKept : kDeviceFull;
  return heap.settings.cap + granule > heap.device.total() ? kDeviceFull : kCapReached;
}

// The largest request that an empty arena could serve, within the budgets of the scopes.
Bytes most_for(const Heap& heap, const HeapRequest& request) {
  const Bytes total = heap.device.total(), cap = heap.settings.cap;
  const Bytes device = heap.settings.upstream ? cap : total - std::min(total, heap.settings.headroom);
  const Bytes most = round_down(std::min(cap, device), heap.backing->granule());
  return request.scope ? std::min(most, round_down(request.scope->least_budget(), kAlignment)) : most;
}

BudgetUse use_of(const Heap& heap, const Scope& scope) {
  BudgetUse use{.scope = scope.name(), .budget = scope.budget().value_or(0), .live = scope.live(), .serials = {}};
  heap.blocks.each([&](const Block& block) {
    if (block.live && !block.lost && block.scope && block.scope->is_in(scope)) use.serials.push_back(block.serial);
  });
  return use;
}

void count_failure(Heap& heap, const HeapRequest& request) {
  ++heap.failures;
  if (!heap.events.is_on()) return;
  heap.events.emit({.kind = EventKind::kFailure, .size = request.size, .stream = request.index, .line = request.line});
}

}  // namespace

// Everything in the error is from one moment: the lock is held from the figures to the snapshot.
void fail(Heap& heap, const HeapRequest& request, Lock& lock, const Reason& reason) {
  heap.limits.ask_device(request, lock);
  const Verdict verdict = reason.verdict ? *reason.verdict : why_full(heap, request.rounded);
  heap.note_peak();
  heap.update_cache_policy();
  if (request.is_last) count_failure(heap, request);
  const bool could_move = request.moving == Moving::kAllowed && verdict != Verdict::kMovingForbidden;
  const Moving moving = could_move && verdict != Verdict::kCapturing ? Moving::kAllowed : Moving::kForbidden;
  std::shared_ptr<const Snapshot> snapshot;
  Stats stats;
  {
    const Inspection inspection(heap);
    if (request.is_last) snapshot = std::make_shared<const Snapshot>(take_snapshot(heap, moving));
    stats = snapshot ? snapshot->stats : stats_of(heap, moving);
  }
  const Bytes budget = request.scope ? round_down(request.scope->left_in_all(), kAlignment) : ~Bytes{0};
  const Bytes largest = std::min({reason.most_now, stats.largest, budget});
  const Bytes by_moving = std::min({reason.most_by_moving, stats.largest_with_moving, budget});
  const bool lacks_moving = request.rounded > largest && request.rounded <= by_moving;
  heap.wants_moving |= lacks_moving && request.is_last;
  std::optional<BudgetUse> use;
  if (reason.exceeded != nullptr) use = use_of(heap, *reason.exceeded);
  throw OutOfMemory(
      {.verdict = verdict,
       .requested = request.size,
       .largest = largest,
       .most = most_for(heap, request),
       .by_moving = {.largest = std::max(largest, by_moving), .set_free = lacks_moving ? stats.compactable : 0},
       .could_move = could_move,
       .budget = std::move(use),
       .stats = stats,
       .snapshot = std::move(snapshot)});
}

void check_budget(Heap& heap, const HeapRequest& request, Lock& lock) {
  const Scope* scope = request.scope->exceeded_by(request.rounded);
  if (scope == nullptr) return;
  const Bytes left = round_down(request.scope->left_in_all(), kAlignment);
  fail(heap, request, lock,
       {.verdict = Verdict::kBudgetReached, .exceeded = scope, .most_now = left, .most_by_moving = left});
}

}  // namespace arena
