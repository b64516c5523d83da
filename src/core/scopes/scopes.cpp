#include "core/scopes/scopes.hpp"

#include "core/scopes/entered.hpp"

namespace arena {
namespace {

thread_local EnteredByThread<Scope> entered_scopes;

}  // namespace

std::shared_ptr<Scope> current_scope(std::uint64_t owner) { return entered_scopes.last_of(owner); }

void enter_scope(std::uint64_t owner, std::shared_ptr<Scope> scope) { entered_scopes.add(owner, std::move(scope)); }

}  // namespace arena
