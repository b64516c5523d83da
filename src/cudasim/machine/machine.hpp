// The simulated machine: devices, contexts and every live object, behind one mutex. The mutex is never held while
// waiting for a stream or running a task. The machine is never destroyed: worker threads may outlive main.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "cudasim/machine/calls.hpp"
#include "cudasim/machine/checker.hpp"
#include "cudasim/machine/findings.hpp"
#include "cudasim/machine/registry.hpp"
#include "cudasim/machine/space.hpp"
#include "cudasim/machine/store.hpp"
#include "cudasim/machine/streams.hpp"
#include "cudasim/machine/values.hpp"
#include "cudasim/settings/settings.hpp"

namespace cudasim {

struct Pool;
struct EventState;
struct Capture;
struct GraphState;
struct ExecState;
struct NodeState;
struct UserObjectState;
struct ModuleState;
struct FunctionState;
struct LibraryState;
struct KernelState;

// The pools of a device, or of the host: the default one, and the current one.
struct PoolChoice {
  cu::MemPool standard = nullptr;
  cu::MemPool current = nullptr;
};

struct DeviceState {
  int number = 0;
  std::uint64_t total = 0;
  std::uint64_t used = 0;
  std::uint64_t peak = 0;
  std::unique_ptr<Store> store;
  cu::Context primary_handle = nullptr;  // the same for every primary context of the device
  std::shared_ptr<ContextState> primary;
  unsigned primary_users = 0;
  unsigned primary_flags = 0;
  unsigned contexts = 0;  // alive: together they take what the card says
  PoolChoice pools;

  std::uint64_t bit() const { return std::uint64_t{1} << number; }
};

struct ContextState {
  cu::Context handle = nullptr;
  DeviceState* device = nullptr;
  bool primary = false;
  bool alive = true;
  unsigned flags = 0;
  std::uint64_t id = 0;
  std::atomic<cu::Result> error{cu::Result::kSuccess};  // sticky: set by a task that faulted
  std::set<cu::Context> peers;                          // whose plain allocations this context may access
  StreamRef legacy;
  std::vector<StreamRef> blocking;  // streams with handles that the legacy stream waits for
  StreamRef recorder;               // an internal stream for the events of cuCtxRecordEvent; has no handle
  struct PerThread {
    StreamRef stream;
    std::weak_ptr<const void> life;  // of the thread
  };
  std::map<std::uint64_t, PerThread> per_thread;  // by thread
  std::vector<StreamRef> destroyed;               // streams that were destroyed while they had work
  std::vector<Mark> gates;                        // of cuCtxWaitEvent: all later work waits for them
  Clock gate_clock;
  std::array<std::size_t, 7> limits{};  // cuCtxSetLimit's, by number
  cu::FunctionCache cache = cu::FunctionCache::kNone;
};
using ContextRef = std::shared_ptr<ContextState>;

struct Machine {
  std::mutex mutex;
  Settings settings;
  std::string bad_environment;  // why cuInit fails; empty if it does not
  bool initialised = false;
  bool ending = false;           // a reset is waiting for work to end: no more is accepted
  std::uint64_t generation = 0;  // incremented by each reset, so that threads drop contexts from before

  CallLog calls;
  Findings findings;
  Checker checker{findings};
  Values values;
  std::unique_ptr<Space> space;
  std::unique_ptr<Store> host_store;
  std::vector<std::unique_ptr<DeviceState>> devices;

  Registry<cu::Context, ContextState> contexts{"context", 0x10'0000'0000};
  Registry<cu::Stream, StreamState> streams{"stream", 0x20'0000'0000};
  Registry<cu::Event, EventState> events{"event", 0x30'0000'0000};
  Registry<cu::MemPool, Pool> pools{"pool", 0x40'0000'0000};
  PoolChoice host_pools;
  Registry<cu::Graph, GraphState> graphs{"graph", 0x50'0000'0000};
  Registry<cu::GraphExec, ExecState> graph_execs{"graph exec", 0x60'0000'0000};
  Registry<cu::GraphNode, NodeState> graph_nodes{"graph node", 0xb0'0000'0000};
  Registry<cu::UserObject, UserObjectState> user_objects{"user object", 0xc0'0000'0000};
  Registry<cu::Module, ModuleState> modules{"module", 0x70'0000'0000};
  Registry<cu::Function, FunctionState> functions{"function", 0x80'0000'0000};
  Registry<cu::Library, LibraryState> libraries{"library", 0x90'0000'0000};
  Registry<cu::Kernel, KernelState> kernels{"kernel", 0xa0'0000'0000};
  std::unordered_map<std::uint64_t, PhysicalRef> handles;  // cuMemCreate's, by id
  std::uint64_t next_id = 1;
  std::map<std::uint64_t, std::shared_ptr<Capture>> captures;  // in progress, by id

  void start();  // creates the devices; throws std::bad_alloc when the host has no room
  void reset();  // needs the mutex, and idle streams
  DeviceState& add_device(std::uint64_t bytes);
  DeviceState& device(int number);  // throws Refusal(kInvalidDevice)

  std::uint64_t free_bytes(const DeviceState& device) const;
  // Takes bytes of a device (null: of the host). Throws Refusal(kOutOfMemory).
  PhysicalRef new_physical(DeviceState* device, std::uint64_t size, std::uint64_t unit);
};

Machine& machine();

inline bool is_access(cu::MemAccess flags) {
  return flags == cu::MemAccess::kNone || flags == cu::MemAccess::kRead || flags == cu::MemAccess::kReadWrite;
}

// Whether this process was forked from one that had initialised the driver. Then every call is refused.
bool forked();

}  // namespace cudasim
