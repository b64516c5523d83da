#include "core/scopes.hpp"

#include <vector>

namespace arena {
namespace {

struct Entered {
  const void* owner;
  std::shared_ptr<Scope> scope;
};

thread_local std::vector<Entered> entered;

}  // namespace

std::shared_ptr<Scope> current_scope(const void* owner) {
  const auto it = std::find_if(entered.rbegin(), entered.rend(), [&](const Entered& e) { return e.owner == owner; });
  return it == entered.rend() ? nullptr : it->scope;
}

void enter_scope(const void* owner, std::shared_ptr<Scope> scope) { entered.push_back({owner, std::move(scope)}); }

bool leave_scope(const std::shared_ptr<Scope>& scope) {
  const auto it = std::find_if(entered.rbegin(), entered.rend(), [&](const Entered& e) { return e.scope == scope; });
  if (it == entered.rend()) return false;
  entered.erase(std::next(it).base());
  return true;
}

}  // namespace arena
