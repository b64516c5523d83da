// Scopes, the observer, and the watch.
#include <string>

#include "core/arena/arena.hpp"

namespace arena {

std::shared_ptr<Scope> Arena::begin_scope(const std::string& name, std::optional<Bytes> budget) {
  const Lock held = lock();
  std::uint64_t first = 0;
  {
    const StreamCaches::AllLocked all(heap_.caches);
    first = heap_.caches.begin_serials();
  }
  const std::shared_ptr<Scope> around = current_scope(heap_.id);
  if (around && around->depth() >= Scope::kDeepest) {
    throw UsageError("scopes can be nested at most " + std::to_string(Scope::kDeepest) + " deep: end some first");
  }
  const ScopeOptions options{.number = scopes_++, .first = first, .name = name, .budget = budget, .parent = around};
  auto scope = std::make_shared<Scope>(options, scope_paths_);
  enter_scope(heap_.id, scope);
  if (heap_.events.is_on()) {
    heap_.events.emit({.kind = EventKind::kScopeBegin,
                       .size = budget.value_or(~Bytes{0}),
                       .scope = scope->number(),
                       .name = scope->name()});
  }
  return scope;
}

void Arena::end_scope(Scope& scope) {
  scope.end();
  if (is_inherited()) return;
  const Lock held = lock(When::kAlways);
  if (heap_.events.is_on()) heap_.events.emit({.kind = EventKind::kScopeEnd, .scope = scope.number()});
}

std::map<std::string, ScopeTotals> Arena::scope_totals() const {
  check_process();
  const std::lock_guard held(mutex_.for_inspection());
  return scope_paths_.copy();
}

std::shared_ptr<Observer> Arena::observe(std::shared_ptr<Observer> observer) {
  const Lock held = lock(When::kAlways);
  std::shared_ptr<Observer> previous = heap_.events.set(std::move(observer));
  heap_.update_cache_policy();
  {
    const StreamCaches::AllLocked all(heap_.caches);
    heap_.caches.begin_serials();  // events number blocks consecutively
  }
  if (heap_.events.is_on()) heap_.events.emit_live(heap_.blocks);
  heap_.emit_reserved();
  return previous;
}

void Arena::watch(std::shared_ptr<Watch> watch) {
  const Lock held = lock(When::kAlways);
  heap_.watch = std::move(watch);
  heap_.update_cache_policy();
  if (!heap_.watch) return;
  if (heap_.tracker.sums().live > 0) heap_.watch->note_change(Watch::Trend::kRising);
  sample_reserved(heap_);
}

void Arena::update_watch() {
  const Lock held = lock(When::kAlways);
  if (heap_.watch) sample_before(heap_, Watch::Trend::kFalling, SampleCost::kAny);
}

}  // namespace arena
