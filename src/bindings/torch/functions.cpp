#include "bindings/torch/functions.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/arenas.hpp"
#include "bindings/buffer.hpp"
#include "bindings/lines.hpp"
#include "bindings/pool_state.hpp"
#include "bindings/slow_path.hpp"
#include "bindings/torch/block_table.hpp"
#include "bindings/torch/error.hpp"
#include "bindings/torch/graphs.hpp"
#include "bindings/torch/history.hpp"
#include "bindings/torch/memory.hpp"
#include "bindings/torch/plugged.hpp"
#include "bindings/torch/questions.hpp"
#include "bindings/torch/statistics.hpp"

namespace py = pybind11;

#define ARENA_EXPORT extern "C" __attribute__((visibility("default"), used))
ARENA_EXPORT void* arena_torch_segment_alloc(std::size_t size, int device, arena::cu::Stream stream);
ARENA_EXPORT void arena_torch_segment_free(void* address, std::size_t size, int device, arena::cu::Stream stream);
ARENA_EXPORT void arena_torch_record_stream(void* address, arena::cu::Stream stream);
ARENA_EXPORT void arena_torch_empty_cache();
ARENA_EXPORT void arena_torch_set_fraction(double fraction, int device);
ARENA_EXPORT void arena_torch_begin_graph(int device, arena::torch::PoolId id, arena::torch::StreamFilter filter);
ARENA_EXPORT void arena_torch_end_graph(int device, arena::torch::PoolId id);
ARENA_EXPORT void arena_torch_release_graph(int device, arena::torch::PoolId id);

namespace arena::torch {
namespace {

// What Python decides: arena.torch sets it once.
struct Python {
  PyObject* source_of = nullptr;     // (device) -> arena.Arena
  PyObject* is_pooled = nullptr;     // (device, stream) -> bool, or None if that cannot be seen now
  PyObject* set_fraction = nullptr;  // (fraction, device)
};
Python python;

// The arenas that PyTorch takes memory from, each once, however often it is given. They are kept for ever: PyTorch frees
// tensors while the process exits.
class PoolTable {
 public:
  PoolState& keep(std::shared_ptr<PoolState> pool) {
    const std::lock_guard lock(mutex_);
    PoolState* const key = pool.get();
    pools_.emplace(key, std::move(pool));
    return *key;
  }
  std::vector<PoolState*> all() {
    const std::lock_guard lock(mutex_);
    std::vector<PoolState*> found;
    for (const auto& [key, pool] : pools_) found.push_back(key);
    return found;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<PoolState*, std::shared_ptr<PoolState>> pools_;
};
PoolTable& pool_table() {
  static auto& table = *new PoolTable;
  return table;
}

// What each device uses, from its first allocation on.
std::array<std::atomic<PoolState*>, kDevices> pools;

// What this thread uses instead: the `with arena.torch.pool(...)` blocks that it is in, innermost last.
thread_local std::vector<PoolState*> entered;
thread_local constinit std::size_t entered_count = 0;  // quicker to read: it has no constructor

BlockTable& blocks() {
  static auto& table = *new BlockTable;
  return table;
}

// Turns a Python exception into one that PyTorch passes on to its caller. With the GIL.
[[noreturn]] void rethrow_for_torch(py::error_already_set& error, Bytes requested) {
  const std::string text = py::str(error.value()).cast<std::string>();
  const bool is_memory = requested != 0 && error.matches(PyExc_MemoryError);
  if (error.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();  // raised again when Python runs
  error.restore();
  PyErr_Clear();
  if (is_memory) throw_out_of_memory(requested, text);
  throw std::runtime_error(text.empty() ? "arena: a request for memory was interrupted" : text);
}

// How often the GIL was taken.
std::atomic<std::uint64_t> python_calls{0};

// Calls Python in any thread, for a request of this size or for none; throws what PyTorch understands.
template <typename Function>
auto call_python(const Function& function, Bytes requested = 0) {
  python_calls.fetch_add(1, std::memory_order_relaxed);
  if (Py_IsInitialized() == 0 || is_finalizing()) {
    throw std::runtime_error("arena: Python is shutting down, and can give PyTorch no more memory");
  }
  return with_gil([&] {
    try {
      return function();
    } catch (py::error_already_set& error) {
      rethrow_for_torch(error, requested);
    }
  });
}

// The memory of a torch.cuda.MemPool with an allocator of its own, if the request belongs to one.
PoolState* pool_of_its_own(int device, cu::Stream stream) {
  const std::shared_ptr<PoolState> own = graph_pools().route(device, stream);
  if (!own) return nullptr;
  stream_of_request = stream;
  return &pool_table().keep(own);
}

PoolState* find_entered(int device) {
  if (entered_count == 0) return nullptr;
  for (auto it = entered.rbegin(); it != entered.rend(); ++it) {
    if ((*it)->device == device) return *it;
  }
  return nullptr;
}

PoolState& pool_for(int device) {
  if (PoolState* found = find_entered(device)) return *found;
  if (device < 0 || static_cast<std::size_t>(device) >= kDevices) throw std::runtime_error("arena: no such device");
  std::atomic<PoolState*>& slot = pools[static_cast<std::size_t>(device)];
  if (PoolState* known = slot.load(std::memory_order_acquire)) return *known;
  return *call_python([&]() -> PoolState* {
    const py::object pool = py::reinterpret_borrow<py::object>(python.source_of)(device);
    PoolState* found = &pool_table().keep(pool_state_of(pool.ptr()));
    PoolState* before = nullptr;
    return slot.compare_exchange_strong(before, found) ? found : before;
  });
}

// PyTorch's own streams are never destroyed, so they may be used at any time. Others are used only while the call that
// names them runs, as the core does with any number.
void look_at_stream(PoolState& pool, cu::Stream stream) {
  if (is_default(stream) || pool.torch_streams.has(stream)) return;
  const std::optional<bool> is_pooled = call_python([&]() -> std::optional<bool> {
    const auto number = reinterpret_cast<std::uintptr_t>(stream);
    const py::object answer = py::reinterpret_borrow<py::object>(python.is_pooled)(pool.device, number);
    return answer.is_none() ? std::nullopt : std::optional(answer.cast<bool>());
  });
  if (!is_pooled) return;
  if (*is_pooled) without_gil([&] { pool.core->keep_stream(stream, nullptr); });
  pool.torch_streams.add(stream);
}

Line line_of_caller() {
  constexpr auto kNoLine = static_cast<Line>(lines::Framework::kTorch);
  if (lines::depth.load(std::memory_order_relaxed) == 0) return kNoLine;
  if (Py_IsInitialized() == 0 || is_finalizing()) return kNoLine;
  python_calls.fetch_add(1, std::memory_order_relaxed);
  return with_gil([] { return lines::current(lines::Framework::kTorch); });
}

// Threads come and go seldom, and only then is the GIL needed for it.
void expect_moving(PoolState& pool) {
  if (!pool.has_other_threads() || Py_IsInitialized() == 0 || is_finalizing()) return;
  call_python([&] { pool.expect_moving(); });
}

// After a request. Gives the block back if Python raises.
void tell_python(PoolState& pool, Block& block) {
  if (!pool.has_news() || Py_IsInitialized() == 0 || is_finalizing()) return;
  try {
    call_python([&] { report_news(pool); });
  } catch (...) {
    pool.core->free(block);
    throw;
  }
}

// Every request and every free passes here, with the lock of no one.
void count_allocated(int device, const Block& block) {
  statistics_of(device).add(block.size, block.requested);
  if (!history().is_on()) return;
  history().add({.address = block.address,
                 .size = block.requested,
                 .stream = reinterpret_cast<std::uint64_t>(block.cu_stream),
                 .line = block.line,
                 .device = device});
}

void count_freed(int device, const Block& block) {
  statistics_of(device).remove(block.size, block.requested);
  if (!history().is_on()) return;
  for (const auto action : {HistoryEvent::Action::kFreeRequested, HistoryEvent::Action::kFreeCompleted}) {
    history().add({.action = action,
                   .address = block.address,
                   .size = block.requested,
                   .stream = reinterpret_cast<std::uint64_t>(block.cu_stream),
                   .device = device});
  }
}

// PyTorch's observers may call Python, and may allocate.
void count_failed(const Arena& core, Bytes size, Line line) {
  const int device = core.device().number();
  statistics_of(device).add_failure();
  if (history().is_on()) {
    const Bytes free = without_gil([&] { return core.device().free(); });
    history().add(
        {.action = HistoryEvent::Action::kOutOfMemory, .address = free, .size = size, .line = line, .device = device});
  }
  report_out_of_memory(device, size);
}

[[gnu::noinline]] Block& allocate_missed(PoolState& pool, Request request) {
  look_at_stream(pool, request.stream);
  expect_moving(pool);
  request.is_last = false;
  std::optional<Failure> failure;
  try {
    return *without_gil([&] {
      if (pool.watched() != Watched::kNone) pool.rearm_gauges();
      Block& block = pool.core->allocate(request);
      tell_python(pool, block);
      return &block;
    });
  } catch (const OutOfMemory& error) {
    failure = error.failure();
  }
  return *call_python(
      [&] {
        try {
          return &allocate_after_failure(pool, request, *failure);
        } catch (const py::error_already_set& error) {
          if (error.matches(PyExc_MemoryError)) count_failed(*pool.core, request.size, request.line);
          throw;
        }
      },
      request.size);
}

void* allocate(std::size_t size, int device, cu::Stream stream) {
  if (size == 0) return nullptr;
  PoolState* own = pool_of_its_own(device, stream);
  PoolState& pool = own != nullptr ? *own : pool_for(device);
  const Line line = line_of_caller();
  graph_pools().join(*pool.core, stream);
  Block* block = pool.watched() != Watched::kAll ? pool.core->try_allocate(size, stream, line) : nullptr;
  if (block == nullptr) block = &allocate_missed(pool, {.size = size, .stream = stream, .line = line});
  void* address = reinterpret_cast<void*>(block->address);
  try {
    blocks().add(address, {.pool = &pool, .block = block});
  } catch (const std::bad_alloc&) {  // the host has no memory for the table
    without_gil([&] { pool.core->free(*block); });
    throw;
  }
  count_allocated(pool.device, *block);
  return address;
}

// Errors mean that the driver is gone, and the memory with it. PyTorch frees in destructors, where nothing may be thrown.
void free(void* address) {
  if (blocks().is_inherited()) return;
  const std::optional<Entry> entry = blocks().take(address);
  if (!entry) return;
  Arena& core = *entry->pool->core;
  count_freed(entry->pool->device, *entry->block);
  try {
    if (!core.try_free(*entry->block)) without_gil([&] { core.free(*entry->block); });
  } catch (const std::exception&) {
  }
}

// Segments for PyTorch's own allocator (torch.cuda.MemPool), which holds a mutex during these calls. Other threads wait for it with
// the GIL, as in torch.cuda.memory_allocated(). So this neither takes the GIL nor lets it go, and runs no Python: no functions for
// memory pressure or out of memory, no lines. Null if there is not enough memory: PyTorch then returns segments that it has
// cached, tries again, and raises its own error.
void* allocate_segment(std::size_t size, int device, cu::Stream stream) {
  if (size == 0) return nullptr;
  PoolState* pool = find_entered(device);
  if (pool == nullptr) throw std::runtime_error("arena: the thread is not in arena.torch.pool() of this device");
  const WithoutPython without_python;
  constexpr auto kNoLine = static_cast<Line>(lines::Framework::kTorch);
  try {
    Block* block = pool->core->try_allocate(size, stream, kNoLine);
    if (block == nullptr) {
      block = &pool->core->allocate({.size = size, .stream = stream, .line = kNoLine, .is_last = false});
    }
    void* address = reinterpret_cast<void*>(block->address);
    blocks().add(address, {.pool = pool, .block = block});
    return address;
  } catch (const OutOfMemory&) {
    return nullptr;
  }
}

void free_segment(void* address) {
  if (blocks().is_inherited()) return;
  const std::optional<Entry> entry = blocks().take(address);
  if (!entry) return;
  const WithoutPython without_python;
  Arena& core = *entry->pool->core;
  try {
    if (!core.try_free(*entry->block)) core.free(*entry->block);
  } catch (const std::exception&) {
  }
}

// PyTorch passes 0 for the default stream of every device, and the driver would take it for that of the arena's own.
void record_use(Arena& core, std::uint64_t address, cu::Stream stream) {
  if (is_default(stream)) {
    core.record_default_streams(address, stream);
  } else {
    core.record_stream(address, stream);
  }
}

// Memory that PyTorch did not allocate: it came by DLPack. If another framework has it from an arena, that has to know.
void record_stream_elsewhere(void* address, cu::Stream stream) {
  for (const std::shared_ptr<Arena>& core : arenas::all()) {
    if (const auto start = core->find_around(reinterpret_cast<std::uintptr_t>(address))) {
      record_use(*core, *start, stream);
      return;
    }
  }
}

void record_stream(void* address, cu::Stream stream) {
  if (blocks().is_inherited()) return;
  const std::optional<Entry> entry = blocks().find(address);
  if (!entry) {
    without_gil([&] { record_stream_elsewhere(address, stream); });
    return;
  }
  look_at_stream(*entry->pool, stream);
  without_gil([&] { record_use(*entry->pool->core, entry->block->address, stream); });
}

// torch.cuda.empty_cache(). The arenas of a parent process and closed ones have nothing to give back.
void empty_cache() {
  if (blocks().is_inherited()) return;
  for (PoolState* pool : pool_table().all()) {
    without_gil([&] {
      try {
        pool->core->trim();
      } catch (const UsageError&) {
      }
    });
  }
}

// torch.cuda.set_per_process_memory_fraction()
void set_fraction(double fraction, int device) {
  call_python([&] { py::reinterpret_borrow<py::object>(python.set_fraction)(fraction, device); });
}

void begin_graph(int device, PoolId id, StreamFilter filter) {
  const PoolState& pool = pool_for(device);
  without_gil([&] { graph_pools().begin(id, pool.core, std::move(filter)); });
}

// PyTorch ends and releases pools in destructors, too, where nothing may be thrown.
void end_graph(PoolId id) {
  try {
    without_gil([&] { graph_pools().end(id); });
  } catch (const std::exception&) {
  }
}

void release_graph(PoolId id) {
  try {
    without_gil([&] { graph_pools().release(id); });
  } catch (const std::exception&) {
  }
}

}  // namespace

GraphPools& graph_pools() {
  static auto& pools = *new GraphPools;
  return pools;
}

std::shared_ptr<Arena> arena_for(int device) { return pool_for(device).core; }

std::vector<std::shared_ptr<Arena>> arenas_of(int device) {
  std::vector<std::shared_ptr<Arena>> found;
  for (const PoolState* pool : pool_table().all()) {
    if (pool->device == device) found.push_back(pool->core);
  }
  return found;
}

// An arena whose memory is live is in the table.
void add_live(const Arena& core, Block& block) {
  const std::vector<PoolState*> all = pool_table().all();
  const auto pool = std::ranges::find_if(all, [&](const PoolState* one) { return one->core.get() == &core; });
  blocks().add(reinterpret_cast<void*>(block.address), {.pool = *pool, .block = &block});
  count_allocated((*pool)->device, block);
}

void free_address(void* address) { free(address); }

Line line_at(void* address) {
  if (blocks().is_inherited()) return 0;
  const std::optional<Entry> entry = blocks().find(address);
  return entry ? entry->block->line : 0;
}

bool is_inherited() { return blocks().is_inherited(); }

void bind(py::module_& module) {
  bind_plugged(module);
  bind_questions(module);
  module.def(
      "connect_torch",
      [](const py::object& source_of, const py::object& is_pooled, const py::object& set_fraction) {
        python = {.source_of = source_of.inc_ref().ptr(),
                  .is_pooled = is_pooled.inc_ref().ptr(),
                  .set_fraction = set_fraction.inc_ref().ptr()};
      },
      py::arg("source_of"), py::arg("is_pooled"), py::arg("set_fraction"),
      "Set the functions that find the arena of a device, tell whether a stream is one of PyTorch's own, and set the "
      "cap to a fraction of a device.");
  module.def(
      "enter_torch_pool",
      [](const py::object& pool) {
        entered.push_back(&pool_table().keep(pool_state_of(pool.ptr())));
        entered_count = entered.size();
      },
      py::arg("pool"), "Give PyTorch memory of this arena in this thread, until leave_torch_pool().");
  module.def(
      "leave_torch_pool",
      [] {
        if (!entered.empty()) entered.pop_back();
        entered_count = entered.size();
      },
      "Give PyTorch memory of the arena before in this thread.");
  module.def(
      "torch_python_calls", [] { return python_calls.load(std::memory_order_relaxed); },
      "How often PyTorch's functions took the GIL so far.");
  module.def(
      "keep_forever", [](const py::object& object) { object.inc_ref(); }, py::arg("object"),
      "Never drop an object, not even when the interpreter ends.");
  module.def(
      "torch_functions",
      [] {
        py::dict found;
        found["record_stream"] = reinterpret_cast<std::uintptr_t>(&arena_torch_record_stream);
        found["empty_cache"] = reinterpret_cast<std::uintptr_t>(&arena_torch_empty_cache);
        found["set_fraction"] = reinterpret_cast<std::uintptr_t>(&arena_torch_set_fraction);
        found["begin_allocate_to_pool"] = reinterpret_cast<std::uintptr_t>(&arena_torch_begin_graph);
        found["end_allocate_to_pool"] = reinterpret_cast<std::uintptr_t>(&arena_torch_end_graph);
        found["release_pool"] = reinterpret_cast<std::uintptr_t>(&arena_torch_release_graph);
        return found;
      },
      "The addresses of the functions that PyTorch calls beside those for allocating and freeing, by what they are "
      "for.");
}

}  // namespace arena::torch

ARENA_EXPORT void* arena_torch_alloc(std::size_t size, int device, arena::cu::Stream stream) {
  return arena::torch::allocate(size, device, stream);
}

ARENA_EXPORT void arena_torch_free(void* address, std::size_t, int, arena::cu::Stream) { arena::torch::free(address); }

ARENA_EXPORT void* arena_torch_segment_alloc(std::size_t size, int device, arena::cu::Stream stream) {
  return arena::torch::allocate_segment(size, device, stream);
}

ARENA_EXPORT void arena_torch_segment_free(void* address, std::size_t, int, arena::cu::Stream) {
  arena::torch::free_segment(address);
}

ARENA_EXPORT void arena_torch_record_stream(void* address, arena::cu::Stream stream) {
  arena::torch::record_stream(address, stream);
}

ARENA_EXPORT void arena_torch_empty_cache() { arena::torch::empty_cache(); }

ARENA_EXPORT void arena_torch_set_fraction(double fraction, int device) {
  arena::torch::set_fraction(fraction, device);
}

ARENA_EXPORT void arena_torch_begin_graph(int device, arena::torch::PoolId id, arena::torch::StreamFilter filter) {
  arena::torch::begin_graph(device, id, std::move(filter));
}

ARENA_EXPORT void arena_torch_end_graph(int, arena::torch::PoolId id) { arena::torch::end_graph(id); }

ARENA_EXPORT void arena_torch_release_graph(int, arena::torch::PoolId id) { arena::torch::release_graph(id); }
