#include "bindings/arenas.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "core/process.hpp"

namespace arena::arenas {
namespace {

struct Table {
  const std::uint32_t forks_at_creation = forks();
  std::mutex mutex;
  std::vector<std::weak_ptr<Arena>> arenas;
};

// Never destroyed: PyTorch asks while the process exits. A forked child gets a new one, because the lock of its parent's may
// never be released.
Table& table() {
  static std::atomic<Table*> current = nullptr;
  Table* found = current.load(std::memory_order_acquire);
  if (found != nullptr && found->forks_at_creation == forks()) return *found;
  auto made = std::make_unique<Table>();
  return current.compare_exchange_strong(found, made.get()) ? *made.release() : *found;
}

}  // namespace

void add(const std::shared_ptr<Arena>& arena) {
  Table& known = table();
  const std::lock_guard lock(known.mutex);
  std::erase_if(known.arenas, [](const std::weak_ptr<Arena>& each) { return each.expired(); });
  known.arenas.push_back(arena);
}

std::vector<std::shared_ptr<Arena>> all() {
  Table& known = table();
  std::vector<std::shared_ptr<Arena>> found;
  const std::lock_guard lock(known.mutex);
  for (const std::weak_ptr<Arena>& each : known.arenas) {
    if (std::shared_ptr<Arena> arena = each.lock()) found.push_back(std::move(arena));
  }
  return found;
}

}  // namespace arena::arenas
