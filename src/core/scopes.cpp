#include "core/scopes.hpp"

#include <vector>

namespace arena {
namespace {

struct Entered {
  std::uint64_t owner;
  std::shared_ptr<Scope> scope;
};

class EnteredScopes {
 public:
  ~EnteredScopes() { scopes_entered -= static_cast<int>(all_.size()); }
  void add(Entered entered) {
    all_.push_back(std::move(entered));
    ++scopes_entered;
  }
  std::shared_ptr<Scope> last_of(std::uint64_t owner) {
    scopes_entered -= static_cast<int>(std::erase_if(all_, [](const Entered& e) { return e.scope->has_ended(); }));
    const auto it = std::find_if(all_.rbegin(), all_.rend(), [&](const Entered& e) { return e.owner == owner; });
    return it == all_.rend() ? nullptr : it->scope;
  }

 private:
  std::vector<Entered> all_;
};

thread_local EnteredScopes entered;

}  // namespace

// A scope may end in another thread, or be forgotten: then it is dropped here, when this thread next allocates.
std::shared_ptr<Scope> current_scope(std::uint64_t owner) {
  return is_any_scope_entered() ? entered.last_of(owner) : nullptr;
}

void enter_scope(std::uint64_t owner, std::shared_ptr<Scope> scope) { entered.add({owner, std::move(scope)}); }

}  // namespace arena
