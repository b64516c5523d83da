// Memory of CUDA graphs that PyTorch captures. PyTorch names a pool before each capture, tells which streams belong to it,
// and releases the pool when the graph is gone: until then the graph keeps what was allocated for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/arena/arena.hpp"

namespace arena::torch {

using PoolId = std::pair<unsigned long long, unsigned long long>;  // as PyTorch declares it
using StreamFilter = std::function<bool(cu::Stream)>;

class GraphPools {
 public:
  // This thread allocates for a graph from now on, and so does each that allocates on a stream of the filter (autograd's
  // threads), until end().
  void begin(PoolId id, std::shared_ptr<Arena> core, StreamFilter filter);
  void end(PoolId id);
  // Once for each begin(): graphs may share a pool, and its memory goes back with the last of them.
  void release(PoolId id);

  // To be called before this thread allocates on a stream.
  void join(const Arena& core, cu::Stream stream) {
    if (active_.load(std::memory_order_relaxed) != 0) join_active(core, stream);
  }

 private:
  struct Capture {
    std::shared_ptr<Arena> core;
    std::shared_ptr<GraphMemory> memory;
    StreamFilter filter;
    std::vector<std::thread::id> threads = {};  // that allocate for it
    bool is_active = true;
  };
  struct Pool {
    std::vector<Capture> captures = {};
    std::size_t released = 0;
  };
  void join_active(const Arena& core, cu::Stream stream);

  std::atomic<int> active_ = 0;
  std::mutex mutex_;
  std::map<PoolId, Pool> pools_;
};

}  // namespace arena::torch
