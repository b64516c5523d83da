// Stream-ordered memory pools.
#pragma once

#include <vector>

#include "cudasim/machine/machine.hpp"

namespace cudasim {

// A pool keeps freed memory in whole pieces and reuses it: at once on the stream that freed it, after a wait on
// another. Memory above the release threshold is released when the host next waits for something.
struct Pool {
  struct Kept {
    std::uint64_t address;  // of a range that is marked as freed
    Mark freed;             // the point in a stream at which it was freed
    Clock clock;
  };
  cu::MemPool handle = nullptr;
  DeviceState* device = nullptr;  // whose bytes it takes; null for host memory
  bool is_default = false;
  bool destroyed = false;  // removed with its last allocation
  Death death;
  std::uint64_t max_size = 0;
  std::uint64_t threshold = 0;
  // Whether to reuse memory that another stream freed: after an event that orders it (has no effect here), if the free
  // happens to have been reached, or by making the allocation wait for it.
  bool reuse[3] = {true, true, true};
  std::uint64_t reserved = 0, reserved_high = 0, used = 0, used_high = 0;
  std::uint64_t readable = 0, writable = 0;
  std::vector<Kept> kept;
};

cu::MemPool new_pool(Machine& m, DeviceState* device, std::uint64_t max_size);
// Releases memory that pools keep above their thresholds.
void trim_pools(Machine& m);
// Frees memory outside of any stream: all work on it must have been waited for.
void return_to_pool(Call& call, Range& range);

}  // namespace cudasim
