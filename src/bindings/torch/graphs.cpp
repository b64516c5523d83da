#include "bindings/torch/graphs.hpp"

#include <algorithm>
#include <exception>

namespace arena::torch {

void GraphPools::retain(PoolId id, const std::function<std::shared_ptr<PoolState>()>& make_own) {
  std::shared_ptr<PoolState> made;
  if (make_own && own_arena(id) == nullptr) made = make_own();
  const std::lock_guard lock(mutex_);
  Pool& pool = pools_[id];
  ++pool.owners;
  if (made && !pool.own) pool.own = std::move(made);
}

int GraphPools::owners(PoolId id) {
  const std::lock_guard lock(mutex_);
  const auto pool = pools_.find(id);
  return pool == pools_.end() ? 0 : pool->second.owners;
}

// Uses of a pool follow each other, and so do the launches of graphs that share one: a use takes over the memory of the one
// before. Uses at the same time have memory of their own.
std::shared_ptr<GraphMemory> GraphPools::take_earlier(Pool& pool, const Arena& core) {
  const auto it =
      std::ranges::find_if(pool.uses, [&](const Use& one) { return !one.is_active && one.core.get() == &core; });
  if (it == pool.uses.end()) return nullptr;
  std::shared_ptr<GraphMemory> memory = std::move(it->memory);
  pool.uses.erase(it);
  return memory;
}

void GraphPools::begin(PoolId id, std::shared_ptr<Arena> core, StreamFilter filter) {
  std::shared_ptr<GraphMemory> earlier;
  {
    const std::lock_guard lock(mutex_);
    Pool& pool = pools_[id];
    ++pool.owners;
    if (pool.own) core = pool.own->core;
    earlier = take_earlier(pool, *core);
  }
  std::shared_ptr<GraphMemory> memory = core->begin_graph(earlier.get());
  const std::lock_guard lock(mutex_);
  Pool& pool = pools_[id];
  if (pool.own) ++routes_;
  ++active_;
  pool.uses.push_back({.core = std::move(core),
                       .memory = std::move(memory),
                       .filter = std::move(filter),
                       .threads = {std::this_thread::get_id()}});
}

// The last use that this thread began; PyTorch may also end one in another thread.
std::vector<GraphPools::Use>::iterator GraphPools::find_ended(std::vector<Use>& uses) {
  const std::thread::id me = std::this_thread::get_id();
  auto found = uses.end();
  for (auto it = uses.begin(); it != uses.end(); ++it) {
    if (!it->is_active) continue;
    if (it->threads.front() == me || found == uses.end() || found->threads.front() != me) found = it;
  }
  return found;
}

void GraphPools::end(PoolId id) {
  Use ended;
  {
    const std::lock_guard lock(mutex_);
    const auto pool = pools_.find(id);
    if (pool == pools_.end()) return;
    std::vector<Use>& uses = pool->second.uses;
    const auto it = find_ended(uses);
    if (it == uses.end()) return;
    it->is_active = false;
    it->filter = nullptr;
    --active_;
    if (pool->second.own) --routes_;
    ended = {.core = it->core, .memory = it->memory, .filter = nullptr};
  }
  ended.core->end_graph(*ended.memory);
}

void GraphPools::count_ended(const Pool& pool) {
  const auto still = static_cast<int>(std::ranges::count_if(pool.uses, [](const Use& one) { return one.is_active; }));
  active_ -= still;
  if (pool.own) routes_ -= still;
}

void GraphPools::release(PoolId id) {
  Pool last;
  {
    const std::lock_guard lock(mutex_);
    const auto pool = pools_.find(id);
    if (pool == pools_.end() || --pool->second.owners > 0) return;
    last = std::move(pool->second);
    pools_.erase(pool);
    count_ended(last);
  }
  for (const Use& one : last.uses) one.core->release_graph(*one.memory);
  if (last.own) last.own->core->close();
}

void GraphPools::trim(PoolId id) {
  if (const std::shared_ptr<PoolState> own = own_arena(id)) own->core->trim();
}

void GraphPools::join_active(const Arena& core, cu::Stream stream) {
  const std::thread::id me = std::this_thread::get_id();
  const std::lock_guard lock(mutex_);
  for (auto& [id, pool] : pools_) {
    for (Use& one : pool.uses) {
      if (!one.is_active || one.core.get() != &core || std::ranges::find(one.threads, me) != one.threads.end())
        continue;
      if (!one.filter || !one.filter(stream)) continue;
      one.threads.push_back(me);
      enter_graph(core.id(), one.memory);
    }
  }
}

std::shared_ptr<PoolState> GraphPools::find_route(int device, cu::Stream stream) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, pool] : pools_) {
    if (!pool.own || pool.own->device != device) continue;
    const bool belongs = std::ranges::any_of(
        pool.uses, [&](const Use& one) { return one.is_active && one.filter && one.filter(stream); });
    if (belongs) return pool.own;
  }
  return nullptr;
}

std::vector<GraphPools::Owned> GraphPools::all() {
  std::vector<Owned> found;
  std::vector<std::shared_ptr<GraphMemory>> memories;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, pool] : pools_) {
      for (const Use& one : pool.uses) {
        found.push_back({.id = id, .core = one.core, .is_own = pool.own != nullptr, .ranges = {}});
        memories.push_back(one.memory);
      }
    }
  }
  for (std::size_t i = 0; i < found.size(); ++i) found[i].ranges = found[i].core->ranges_of(*memories[i]);
  return found;
}

PoolContents GraphPools::contents(PoolId id) {
  std::vector<Use> uses;
  {
    const std::lock_guard lock(mutex_);
    const auto pool = pools_.find(id);
    if (pool != pools_.end()) uses = pool->second.uses;
  }
  PoolContents found{.id = id, .parts = {}};
  for (const Use& one : uses) found.parts.push_back({.core = one.core, .blocks = one.core->live_in(*one.memory)});
  return found;
}

std::shared_ptr<GraphMemory> GraphPools::memory_in(PoolId id, const Arena& core) {
  const std::lock_guard lock(mutex_);
  const auto pool = pools_.find(id);
  if (pool == pools_.end()) return nullptr;
  const auto it = std::ranges::find_if(pool->second.uses, [&](const Use& one) { return one.core.get() == &core; });
  return it == pool->second.uses.end() ? nullptr : it->memory;
}

std::shared_ptr<PoolState> GraphPools::own_arena(PoolId id) {
  const std::lock_guard lock(mutex_);
  const auto pool = pools_.find(id);
  return pool == pools_.end() ? nullptr : pool->second.own;
}

}  // namespace arena::torch
