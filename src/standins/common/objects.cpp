#include "standins/common/objects.hpp"

#include <deque>
#include <mutex>
#include <unordered_map>

namespace standins {

namespace {

// Memory of the last objects destroyed is kept, so that a dead handle does not become the next object's at once.
constexpr std::size_t kKeptDead = 256;

struct Registry {
  std::mutex mutex;
  std::unordered_map<Word, std::unique_ptr<Object>> live;
  std::deque<std::unique_ptr<Object>> dead;
};

// Never destroyed: programs destroy handles from their own static destructors, in an order of their own.
Registry& registry() {
  static Registry* const only = new Registry;
  return *only;
}

}  // namespace

void Object::set(Key key, Word value) {
  for (auto& [known, old] : values_) {
    if (known == key) {
      old = value;
      return;
    }
  }
  values_.emplace_back(key, value);
}

Word Object::get(Key key) const {
  for (const auto& [known, value] : values_) {
    if (known == key) return value;
  }
  return 0;
}

Word add_object(std::unique_ptr<Object> object) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const Word handle = reinterpret_cast<Word>(object.get());
  all.live.emplace(handle, std::move(object));
  return handle;
}

Object* find_object(Word handle) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.live.find(handle);
  return found == all.live.end() ? nullptr : found->second.get();
}

bool remove_object(Word handle) {
  std::unique_ptr<Object> freed;  // destroyed without the lock
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.live.find(handle);
  if (found == all.live.end()) return false;
  all.dead.push_back(std::move(found->second));
  all.live.erase(found);
  if (all.dead.size() > kKeptDead) {
    freed = std::move(all.dead.front());
    all.dead.pop_front();
  }
  return true;
}

}  // namespace standins
