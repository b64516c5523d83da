// What the arena tells an observer, and the scopes, which exist to be told of.
#include <algorithm>
#include <string>

#include "core/arena.hpp"

namespace arena {

std::shared_ptr<Scope> Arena::begin_scope(const std::string& name, std::optional<Bytes> budget) {
  const Lock held = lock();
  std::uint64_t first = 0;
  {
    const Fronts::Held all(fronts_);
    first = fronts_.begin_serials();
  }
  const std::shared_ptr<Scope> around = current_scope(id_);
  if (around && around->depth() >= Scope::kDeepest) {
    throw UsageError("scopes lie in one another " + std::to_string(Scope::kDeepest) + " deep, and no deeper: end some");
  }
  auto scope = std::make_shared<Scope>(scopes_++, first, name, budget, around);
  enter_scope(id_, scope);
  if (observer_) {
    tell({EventKind::kScopeBegin, 0, budget.value_or(~Bytes{0}), 0, 0, 0, scope->number(), scope->name()});
  }
  return scope;
}

void Arena::end_scope(Scope& scope) {
  scope.end();
  if (is_inherited()) return;
  const Lock held = lock(When::kAlways);
  if (observer_) tell({EventKind::kScopeEnd, 0, 0, 0, 0, 0, scope.number()});
}

std::shared_ptr<Observer> Arena::observe(std::shared_ptr<Observer> observer) {
  const Lock held = lock(When::kAlways);
  observer_.swap(observer);
  told_reserved_ = 0;
  set_fronts();
  {
    const Fronts::Held all(fronts_);
    fronts_.begin_serials();  // the numbers that are told follow one another
  }
  if (observer_) tell_live();
  tell_reserved();
  return observer;
}

// What is live already, in the order in which it was allocated.
void Arena::tell_live() {
  std::vector<const Block*> live;
  blocks_.each([&](const Block& block) {
    if (block.live) live.push_back(&block);
  });
  std::sort(live.begin(), live.end(), [](const Block* a, const Block* b) { return a->serial < b->serial; });
  for (const Block* b : live) tell({EventKind::kAllocate, b->serial, b->requested, b->stream, 0, b->line});
}

// Before the first request there is no stream at all.
void Arena::tell(Event event) {
  if (names_stream(event.kind)) {
    event.handle = reinterpret_cast<std::uint64_t>(streams_.stream(event.stream));
    if (event.stream > 0) --event.stream;  // index 0 is Streams::kEverything, never recorded
  }
  observer_->note(event);
}

// What the driver gave or got is told after what it was for.
void Arena::tell_reserved() {
  const Bytes reserved = backing_->reserved() * backing_->granule();
  if (!observer_ || reserved == told_reserved_) return;
  told_reserved_ = reserved;
  tell({EventKind::kReserved, 0, reserved});
}

}  // namespace arena
