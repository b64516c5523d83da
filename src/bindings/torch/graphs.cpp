#include "bindings/torch/graphs.hpp"

#include <algorithm>
#include <exception>

namespace arena::torch {

void GraphPools::begin(PoolId id, std::shared_ptr<Arena> core, StreamFilter filter) {
  std::shared_ptr<GraphMemory> memory = core->begin_graph();
  const std::lock_guard lock(mutex_);
  pools_[id].captures.push_back({.core = std::move(core),
                                 .memory = std::move(memory),
                                 .filter = std::move(filter),
                                 .threads = {std::this_thread::get_id()}});
  ++active_;
}

void GraphPools::end(PoolId id) {
  Capture ended;
  {
    const std::lock_guard lock(mutex_);
    const auto pool = pools_.find(id);
    if (pool == pools_.end()) return;
    std::vector<Capture>& captures = pool->second.captures;
    const auto it = std::find_if(captures.rbegin(), captures.rend(), [](const Capture& one) { return one.is_active; });
    if (it == captures.rend()) return;
    it->is_active = false;
    it->filter = nullptr;
    --active_;
    ended = {.core = it->core, .memory = it->memory, .filter = nullptr};
  }
  ended.core->end_graph(*ended.memory);
}

void GraphPools::release(PoolId id) {
  std::vector<Capture> last;
  {
    const std::lock_guard lock(mutex_);
    const auto pool = pools_.find(id);
    if (pool == pools_.end() || ++pool->second.released < pool->second.captures.size()) return;
    last = std::move(pool->second.captures);
    pools_.erase(pool);
    active_ -=
        static_cast<int>(std::count_if(last.begin(), last.end(), [](const Capture& one) { return one.is_active; }));
  }
  for (const Capture& one : last) one.core->release_graph(*one.memory);
}

void GraphPools::join_active(const Arena& core, cu::Stream stream) {
  const std::thread::id me = std::this_thread::get_id();
  const std::lock_guard lock(mutex_);
  for (auto& [id, pool] : pools_) {
    for (Capture& one : pool.captures) {
      if (!one.is_active || one.core.get() != &core || std::ranges::find(one.threads, me) != one.threads.end())
        continue;
      if (!one.filter || !one.filter(stream)) continue;
      one.threads.push_back(me);
      enter_graph(core.id(), one.memory);
    }
  }
}

}  // namespace arena::torch
