// PyTorch's pools of memory: of CUDA graphs that it captures, and of torch.cuda.MemPool. PyTorch names a pool before each use,
// tells which requests belong to it, and releases the pool when it is gone: until then the pool keeps what was allocated for it.
//
// A pool may have an allocator of its own. Then its memory is that allocator's, divided by an arena of the pool's own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "bindings/pool_state.hpp"
#include "core/arena/arena.hpp"

namespace arena::torch {

using PoolId = std::pair<unsigned long long, unsigned long long>;  // as PyTorch declares it
using StreamFilter = std::function<bool(cu::Stream)>;

// What was live in a pool at one moment.
struct PoolContents {
  struct Part {
    std::shared_ptr<Arena> core;
    std::vector<Arena::GraphBlock> blocks;
  };
  PoolId id;
  std::vector<Part> parts;
};

class GraphPools {
 public:
  // One owner more. `make_own` makes the pool's own arena, if it needs one and has none.
  void retain(PoolId id, const std::function<std::shared_ptr<PoolState>()>& make_own = {});
  int owners(PoolId id);

  // This thread allocates for a pool from now on, and so does each that allocates on a stream of the filter (autograd's
  // threads), until end(). The pool has one owner more.
  void begin(PoolId id, std::shared_ptr<Arena> core, StreamFilter filter);
  void end(PoolId id);
  // One owner less. With the last one the memory goes back.
  void release(PoolId id);
  // Returns free memory of a pool with an allocator of its own to that allocator.
  void trim(PoolId id);

  // To be called before this thread allocates on a stream.
  void join(const Arena& core, cu::Stream stream) {
    if (active_.load(std::memory_order_relaxed) != 0) join_active(core, stream);
  }
  // The arena of a pool with an allocator of its own, if such a request belongs to one; otherwise null.
  std::shared_ptr<PoolState> route(int device, cu::Stream stream) {
    return routes_.load(std::memory_order_relaxed) == 0 ? nullptr : find_route(device, stream);
  }

  // The memory that pools have.
  struct Owned {
    PoolId id;
    std::shared_ptr<Arena> core;
    bool is_own = false;  // all of the arena's memory is the pool's
    std::vector<std::pair<std::uint64_t, Bytes>> ranges;
  };
  std::vector<Owned> all();

  PoolContents contents(PoolId id);
  // The memory that a block of a state belongs to now; null if there is none.
  std::shared_ptr<GraphMemory> memory_in(PoolId id, const Arena& core);
  std::shared_ptr<PoolState> own_arena(PoolId id);

 private:
  struct Use {
    std::shared_ptr<Arena> core;
    std::shared_ptr<GraphMemory> memory;
    StreamFilter filter;
    std::vector<std::thread::id> threads = {};  // that allocate for it
    bool is_active = true;
  };
  struct Pool {
    std::vector<Use> uses = {};
    int owners = 0;
    std::shared_ptr<PoolState> own;  // null unless the pool has an allocator of its own
  };
  static std::vector<Use>::iterator find_ended(std::vector<Use>& uses);
  void join_active(const Arena& core, cu::Stream stream);
  std::shared_ptr<PoolState> find_route(int device, cu::Stream stream);
  std::shared_ptr<GraphMemory> take_earlier(Pool& pool, const Arena& core);
  void count_ended(const Pool& pool);

  std::atomic<int> active_ = 0, routes_ = 0;
  std::mutex mutex_;
  std::map<PoolId, Pool> pools_;
};

}  // namespace arena::torch
