// Stream-ordered memory pools: memory that is allocated and freed in the order of a stream.
#pragma once

#include <vector>

#include "cudasim/machine/machine.hpp"

namespace cudasim {

// A pool keeps what was freed, whole, and hands it out again: to the stream that freed it at once, to another one
// behind a wait. What is kept above the release threshold goes back when the host next waits for something.
struct Pool {
  struct Kept {
    std::uint64_t address;  // of a range that is marked as freed
    Mark freed;             // where in which stream
    Clock clock;
  };
  cu::MemPool handle = nullptr;
  DeviceState* device = nullptr;  // whose bytes it takes; null for host memory
  bool is_default = false;
  bool destroyed = false;  // its last allocation takes it along
  Death death;
  std::uint64_t max_size = 0;
  std::uint64_t threshold = 0;
  // Whether to reuse what another stream freed: after an event that orders it (a permission that is never needed here),
  // when the free happens to have been reached, or by making the allocation wait for it.
  bool reuse[3] = {true, true, true};
  std::uint64_t reserved = 0, reserved_high = 0, used = 0, used_high = 0;
  std::uint64_t readable = 0, writable = 0;
  std::vector<Kept> kept;
};

cu::MemPool new_pool(Machine& m, DeviceState* device, std::uint64_t max_size);
// Gives back what pools keep above their thresholds.
void trim_pools(Machine& m);
// Takes memory back outside of any stream: all that touched it must have been waited for.
void return_to_pool(Call& call, Range& range);

}  // namespace cudasim
