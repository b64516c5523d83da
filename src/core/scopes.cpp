#include "core/scopes.hpp"

#include <vector>

namespace arena {
namespace {

struct Entered {
  std::uint64_t owner;
  std::shared_ptr<Scope> scope;
};

thread_local std::vector<Entered> entered;

}  // namespace

// A scope may end in another thread, or be forgotten: then it is dropped here, when this thread next allocates.
std::shared_ptr<Scope> current_scope(std::uint64_t owner) {
  if (entered.empty()) return nullptr;
  std::erase_if(entered, [](const Entered& e) { return e.scope->has_ended(); });
  const auto it = std::find_if(entered.rbegin(), entered.rend(), [&](const Entered& e) { return e.owner == owner; });
  return it == entered.rend() ? nullptr : it->scope;
}

void enter_scope(std::uint64_t owner, std::shared_ptr<Scope> scope) { entered.push_back({owner, std::move(scope)}); }

}  // namespace arena
