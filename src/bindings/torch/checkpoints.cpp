#include "bindings/torch/checkpoints.hpp"

#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "bindings/torch/layouts.hpp"
#include "bindings/torch/memory.hpp"
#include "bindings/torch/symbols.hpp"

namespace arena::torch {
namespace {

struct Checkpoint final : TorchState {
  explicit Checkpoint(PoolContents its_contents) : contents(std::move(its_contents)) {}
  PoolContents contents;
};

bool are_live(void*, DeviceNumber, PoolId pool, const std::unordered_set<void*>& expected) {
  const PoolContents contents = without_gil([&] { return graph_pools().contents(pool); });
  std::size_t found = 0;
  for (const PoolContents::Part& part : contents.parts) {
    for (const Arena::GraphBlock& block : part.blocks) {
      if (expected.count(reinterpret_cast<void*>(block.address)) == 0) return false;
      ++found;
    }
  }
  return found == expected.size();
}

std::shared_ptr<TorchState> get_checkpoint(void*, DeviceNumber, PoolId pool) {
  return without_gil([&] { return std::make_shared<Checkpoint>(graph_pools().contents(pool)); });
}

// Addresses that are live because of a checkpoint: PyTorch's own bookkeeping does not know them.
class Revived {
 public:
  void add(void* address) {
    const std::lock_guard lock(mutex_);
    all_.insert(address);
    count_.store(all_.size(), std::memory_order_relaxed);
  }
  bool take(void* address) {
    if (count_.load(std::memory_order_relaxed) == 0) return false;
    const std::lock_guard lock(mutex_);
    const bool was_there = all_.erase(address) != 0;
    count_.store(all_.size(), std::memory_order_relaxed);
    return was_there;
  }

 private:
  std::atomic<std::size_t> count_ = 0;
  std::mutex mutex_;
  std::unordered_set<void*> all_;
};
Revived& revived() {
  static auto& one = *new Revived;
  return one;
}

void delete_address(void* self, void* address) {
  if (revived().take(address)) return free_address(address);
  originals.raw_delete(self, address);
}

// PyTorch's function for the deleter of a tensor. In PyTorch 2.8 it frees what an object says that only PyTorch can make, so there every
// tensor gets a deleter of ours.
void delete_plugged(void* address) { delete_address(plugged, address); }
Deleter plain_deleter(const void*) { return &delete_plugged; }

DeviceNumber (*find_current_device())() {
  void* library = dlopen("libc10_cuda.so", RTLD_NOLOAD | RTLD_NOW);
  return library == nullptr ? nullptr
                            : reinterpret_cast<DeviceNumber (*)()>(dlsym(library, "_ZN3c104cuda14current_deviceEv"));
}

DataPointer allocate_plainly(void* self, std::size_t size) {
  static const auto current_device = find_current_device();
  const DeviceNumber device = current_device();
  void* address = originals.raw_alloc(self, size);
  return {.data = address, .context = {address, &delete_plugged}, .device_type = kCuda, .device = device};
}

// What such an object frees with.
constexpr const char* kFreeOfObject =
    "_ZN5torch4cuda22CUDAPluggableAllocator36CUDAPluggableAllocatorDeleterContext4freeEv";

bool uses_plain_deleter = false;

using LiveBlocks = std::unordered_map<std::uint64_t, Arena::GraphBlock>;

LiveBlocks blocks_in(const PoolContents& state) {
  LiveBlocks found;
  for (const PoolContents::Part& part : state.parts) {
    for (const Arena::GraphBlock& block : part.blocks) found.emplace(block.address, block);
  }
  return found;
}

void revive(const PoolContents::Part& part, PoolId pool, const Arena::GraphBlock& block) {
  const std::shared_ptr<GraphMemory> memory = graph_pools().memory_in(pool, *part.core);
  if (memory == nullptr) refuse("this checkpoint is of a pool that is gone; record the graph again");
  add_live(*part.core, part.core->revive(memory, block));
  revived().add(reinterpret_cast<void*>(block.address));
}

// Blocks that are live now and were live then stay: PyTorch counts them as freed and allocated again.
CheckpointDelta restore(void* self, DeviceNumber device, const PoolContents& then) {
  const LiveBlocks wanted = blocks_in(then);
  const LiveBlocks live = blocks_in(graph_pools().contents(then.id));
  CheckpointDelta delta;
  for (const auto& [address, block] : live) {
    void* pointer = reinterpret_cast<void*>(address);
    delta.freed.push_back(pointer);
    const auto same = wanted.find(address);
    if (same != wanted.end() && same->second.size == block.size) continue;
    revived().take(pointer);
    free_address(pointer);
  }
  const Deleter deleter = uses_plain_deleter ? &delete_plugged : originals.raw_deleter(self);
  for (const PoolContents::Part& part : then.parts) {
    for (const Arena::GraphBlock& block : part.blocks) {
      const auto same = live.find(block.address);
      if (same == live.end() || same->second.size != block.size) revive(part, then.id, block);
      void* pointer = reinterpret_cast<void*>(block.address);
      delta.allocated.push_back(
          {.data = pointer, .context = {pointer, deleter}, .device_type = kCuda, .device = device});
    }
  }
  return delta;
}

CheckpointDelta set_checkpoint(void* self, DeviceNumber device, std::shared_ptr<TorchState> state) {
  const auto* checkpoint = dynamic_cast<const Checkpoint*>(state.get());
  if (checkpoint == nullptr) refuse("this is not a state that _cuda_getCheckpointState() gave");
  return without_gil([&] { return restore(self, device, checkpoint->contents); });
}

#define IN_PLUGGABLE "_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator"
#define LIVE "_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator24checkPoolLiveAllocationsEaSt4pairIyyERK"
#define SET "St13unordered_setIPvSt4hashIS6_ESt8equal_toIS6_ESaIS6_EE"
#define STATE "St10shared_ptrIN3c104cuda20CUDACachingAllocator14AllocatorStateEE"

}  // namespace

Group checkpoint_functions(const void* function_of_pytorch) {
  uses_plain_deleter = exports_function(function_of_pytorch, kFreeOfObject) && find_current_device() != nullptr;
  Group group{.slots = {{IN_PLUGGABLE "10raw_deleteEPv", slot_of(&delete_address), place_of(originals.raw_delete)},
                        {LIVE SET, slot_of(&are_live)},
                        {IN_PLUGGABLE "18getCheckpointStateEaSt4pairIyyE", slot_of(&get_checkpoint)},
                        {IN_PLUGGABLE "22setCheckpointPoolStateEa" STATE, slot_of(&set_checkpoint)},
                        {"_ZNK5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator11raw_deleterEv",
                         uses_plain_deleter ? slot_of(&plain_deleter) : nullptr, place_of(originals.raw_deleter)}},
              .needed = 5};
  if (uses_plain_deleter) {
    group.slots.push_back({IN_PLUGGABLE "9raw_allocEm", nullptr, place_of(originals.raw_alloc)});
    group.slots.push_back({IN_PLUGGABLE "8allocateEm", slot_of(&allocate_plainly)});
    group.needed += 2;
  }
  return group;
}

#undef IN_PLUGGABLE
#undef LIVE
#undef SET
#undef STATE

}  // namespace arena::torch
