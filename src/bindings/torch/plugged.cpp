#include "bindings/torch/plugged.hpp"

#include <dlfcn.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "bindings/arenas.hpp"
#include "bindings/bindings.hpp"
#include "bindings/torch/checkpoints.hpp"
#include "bindings/torch/history.hpp"
#include "bindings/torch/layouts.hpp"
#include "bindings/torch/memory.hpp"
#include "bindings/torch/statistics.hpp"
#include "bindings/torch/symbols.hpp"
#include "bindings/torch/table.hpp"

namespace py = pybind11;

namespace arena::torch {
namespace {

// ---- questions about a device

// The largest request that would pass now: cuDNN tries algorithms with at most that much scratch memory.
void cache_info(void*, DeviceNumber device, std::size_t* largest) {
  const std::shared_ptr<Arena> core = arena_for(device);
  *largest = without_gil([&] { return core->stats_after_asking(Moving::kForbidden).largest; });
}

double get_fraction(void*, DeviceNumber device) {
  const std::shared_ptr<Arena> core = arena_for(device);
  const Bytes cap = without_gil([&] { return core->cap(); });
  return std::min(1.0, static_cast<double>(cap) / static_cast<double>(core->device().total()));
}

void reset_peaks(void*, DeviceNumber device) { reset_peaks_of(device); }

void reset_totals(void*, DeviceNumber device) { statistics_of(device).reset_totals(); }

bool is_history_on(void*) { return history().is_on(); }

void empty_pool(void* self, PoolId pool) {
  if (pool == PoolId{0, 0}) return originals.empty_cache(self, pool);
  if (is_inherited()) return;
  try {
    without_gil([&] { graph_pools().trim(pool); });
  } catch (const std::exception&) {  // PyTorch calls this in destructors
  }
}

// ---- observers of failures

struct Observers {
  std::mutex mutex;
  std::vector<OutOfMemoryObserver> all;
};
Observers& observers() {
  static auto& one = *new Observers;
  return one;
}

void attach_observer(void*, OutOfMemoryObserver observer) {
  const std::lock_guard lock(observers().mutex);
  observers().all.push_back(std::move(observer));
}

[[noreturn]] void attach_tracker(void*, void*) {
  refuse(
      "NCCL cannot register PyTorch's memory by itself while it comes from an arena; unset "
      "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK, or run without arena.torch.use()");
}

// ---- between processes and devices

[[noreturn]] void refuse_sharing() {
  refuse(
      "tensors of an arena cannot be shared with other processes as CUDA memory; send a copy on the CPU "
      "(tensor.cpu()), or run "
      "this program without arena.torch.use()");
}
[[noreturn]] void share_handle(void*, void*, void*) { refuse_sharing(); }

// How PyTorch 2.4 begins to share a tensor.
[[noreturn]] void* get_base(void*, void*, std::size_t*) { refuse_sharing(); }

[[noreturn]] void open_handle(void*, void*, void*) {
  refuse(
      "CUDA memory of another process cannot be opened while PyTorch's memory comes from an arena; have it send a copy "
      "on the CPU "
      "(tensor.cpu()), or run this program without arena.torch.use()");
}

// The runtime's plain copy faults on virtual memory where devices are not peers.
int copy_memory(void* self, void* to, int to_device, const void* from, int from_device, std::size_t size,
                cu::Stream stream, bool p2p_enabled) {
  if (to_device != from_device) {
    const auto source = arenas_of(from_device), target = arenas_of(to_device);
    if (!source.empty() && !target.empty()) {
      const cu::Result result =
          source.front()->device().copy_to_peer(target.front()->device(), reinterpret_cast<std::uintptr_t>(to),
                                                reinterpret_cast<std::uintptr_t>(from), size, stream);
      if (result != cu::Result::kNotSupported) return static_cast<int>(result);  // the runtime has the same numbers
    }
  }
  return originals.copy(self, to, to_device, from, from_device, size, stream, p2p_enabled);
}

// ---- pools

constexpr const char* kTableName = "_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE";
constexpr Bytes kGrowth = Bytes{20} << 20;  // what PyTorch takes from such an allocator at a time

PlainSource from_allocator(const std::shared_ptr<void>& allocator) {
  return [allocator](Bytes size) -> std::optional<PlainMemory> {
    void* address = originals.raw_alloc_with_stream(allocator.get(), size, stream_of_request);
    if (address == nullptr) return std::nullopt;
    return PlainMemory{reinterpret_cast<std::uintptr_t>(address),
                       [allocator, address] { originals.raw_delete(allocator.get(), address); }};
  };
}

std::shared_ptr<PoolState> make_arena_on(int device, const std::shared_ptr<void>& allocator) {
  const std::shared_ptr<Arena> base = arena_for(device);
  return without_gil([&] {
    ArenaSettings settings{.cap = base->device().total(), .growth = kGrowth, .upstream = from_allocator(allocator)};
    const auto end = [](Arena* arena) {
      if (!arena->is_inherited()) delete arena;  // else everything in it belongs to the parent process
    };
    std::shared_ptr<Arena> made(new Arena(base->device().driver(), device, std::move(settings)), end);
    arenas::add(made);
    return std::make_shared<PoolState>(std::move(made), PoolState::Options{});
  });
}

void create_pool(void*, DeviceNumber device, PoolId pool, std::shared_ptr<void> allocator) {
  if (allocator == nullptr || allocator.get() == plugged) return graph_pools().retain(pool);
  if (!has_table(allocator.get(), kTableName)) {
    refuse("MemPool() accepts a torch.cuda.memory.CUDAPluggableAllocator, or no allocator");
  }
  graph_pools().retain(pool, [&] { return make_arena_on(device, allocator); });
}

// PyTorch 2.8 keeps the allocator itself.
void create_pool_of_raw(void* self, DeviceNumber device, PoolId pool, void* allocator) {
  create_pool(self, device, pool, std::shared_ptr<void>(allocator, [](void*) {}));
}

int count_owners(void*, DeviceNumber, PoolId pool) { return graph_pools().owners(pool); }

[[noreturn]] void refuse_option(PoolId pool, const char* what) {
  without_gil([&] { graph_pools().release(pool); });
  refuse(what);
}

void set_use_on_oom(void*, DeviceNumber, PoolId pool, bool use_on_oom) {
  if (!use_on_oom) return;  // the default; PyTorch sets it before it drops a pool
  refuse_option(pool,
                "MemPool(use_on_oom=True) is not supported; make the pool without it, and drop the pool in a function "
                "registered with Arena.on_oom()");
}

void always_use_on_oom(void* self, DeviceNumber device, PoolId pool) { set_use_on_oom(self, device, pool, true); }

void set_no_split(void*, DeviceNumber, PoolId pool) {
  refuse_option(pool, "MemPool(no_split=True) is not supported; make the pool without it");
}

// ---- the table

#define IN_PLUGGABLE "_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator"
#define IN_BASE "_ZN3c104cuda20CUDACachingAllocator13CUDAAllocator"
#define STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
#define TRACKER(entry) IN_PLUGGABLE "27attachAllocatorTraceTrackerESt8functionIFvRKN3c10" entry "10TraceEntryEEE"

std::vector<Group> groups(const void* object_of_pytorch) {
  const bool shares_by_handle = exports_function(object_of_pytorch, IN_PLUGGABLE "14shareIpcHandleEPv");
  return {
      {{{IN_PLUGGABLE "9cacheInfoEaPm", slot_of(&cache_info)}}, 1},
      {{{IN_PLUGGABLE "17getMemoryFractionEa", slot_of(&get_fraction)}}, 1},
      {{{IN_PLUGGABLE "14resetPeakStatsEa", slot_of(&reset_peaks)}}, 1},
      {{{IN_PLUGGABLE "21resetAccumulatedStatsEa", slot_of(&reset_totals)}}, 1},
      {{{IN_BASE "16isHistoryEnabledEv", slot_of(&is_history_on)}}, 1},
      {{{IN_PLUGGABLE "10emptyCacheESt4pairIyyE", slot_of(&empty_pool), place_of(originals.empty_cache)}}, 1},
      {{{IN_PLUGGABLE "25attachOutOfMemoryObserverESt8functionIFvlmmmEE", slot_of(&attach_observer)}}, 1},
      {{{TRACKER("22CachingDeviceAllocator"), slot_of(&attach_tracker)},
        {TRACKER("4cuda20CUDACachingAllocator"), slot_of(&attach_tracker)}},
       1},
      {{shares_by_handle ? Slot{IN_PLUGGABLE "14shareIpcHandleEPv", slot_of(&share_handle)}
                         : Slot{IN_PLUGGABLE "17getBaseAllocationEPvPm", slot_of(&get_base)}},
       1},
      {{{IN_PLUGGABLE "12getIpcDevPtrE" STRING, slot_of(&open_handle)},
        {IN_PLUGGABLE "12getIpcDevPtrESs", slot_of(&open_handle)}},
       1},
      {{{IN_PLUGGABLE "11memcpyAsyncEPviPKvimP11CUstream_stb", slot_of(&copy_memory), place_of(originals.copy)}}, 1},
      checkpoint_functions(object_of_pytorch),
      {{{IN_PLUGGABLE "10raw_deleteEPv", nullptr, place_of(originals.raw_delete)},
        {IN_PLUGGABLE "21raw_alloc_with_streamEmP11CUstream_st", nullptr, place_of(originals.raw_alloc_with_stream)},
        {IN_BASE "15getPoolUseCountEaSt4pairIyyE", slot_of(&count_owners)},
        {IN_BASE "18createOrIncrefPoolEaSt4pairIyyESt10shared_ptrIS2_E", slot_of(&create_pool)},
        {IN_BASE "18createOrIncrefPoolEaSt4pairIyyEPS2_", slot_of(&create_pool_of_raw)},
        {IN_BASE "11setUseOnOOMEaSt4pairIyyE", slot_of(&always_use_on_oom)},
        {IN_BASE "11setUseOnOOMEaSt4pairIyyEb", slot_of(&set_use_on_oom)}},
       5},
      {{{IN_BASE "10setNoSplitEaSt4pairIyyE", slot_of(&set_no_split)}}, 1},
  };
}

// The object that PyTorch allocates with.
void* find_plugged() {
  using Place = std::atomic<void*>;
  void* library = dlopen("libc10_cuda.so", RTLD_NOLOAD | RTLD_NOW);
  if (library == nullptr) return nullptr;
  auto* place = static_cast<Place*>(dlsym(library, "_ZN3c104cuda20CUDACachingAllocator9allocatorE"));
  return place == nullptr ? nullptr : place->load();
}

}  // namespace

void reset_peaks_of(int device) {
  statistics_of(device).reset_peaks();
  if (is_inherited()) return;
  for (const std::shared_ptr<Arena>& core : arenas_of(device)) {
    without_gil([&] {
      try {
        core->reset_peaks();
      } catch (const UsageError&) {  // it is closed
      }
    });
  }
}

void report_out_of_memory(int device, std::size_t size) {
  std::vector<OutOfMemoryObserver> all;
  {
    const std::lock_guard lock(observers().mutex);
    all = observers().all;
  }
  if (all.empty()) return;
  const Device& its = arena_for(device)->device();
  const Bytes free = without_gil([&] { return its.free(); });
  for (const OutOfMemoryObserver& observer : all) observer(device, size, its.total(), free);
}

void bind_plugged(py::module_& module) {
  module.def(
      "extend_torch_allocator",
      [] {
        plugged = find_plugged();
        return plugged == nullptr ? std::vector<std::string>{}
                                  : replace_functions(plugged, kTableName, groups(table_of_pytorch(plugged)));
      },
      "Answer what PyTorch's own code asks the allocator in use, and return the mangled names of the functions that "
      "were "
      "replaced.");
}

}  // namespace arena::torch
