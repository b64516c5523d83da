#include "cudasim/machine/machine.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <stdexcept>

#include "cudasim/api/capture.hpp"
#include "cudasim/api/events.hpp"
#include "cudasim/api/modules.hpp"
#include "cudasim/api/pools.hpp"

namespace cudasim {
namespace {

constexpr std::uint64_t kStoreSpan = std::uint64_t{2} << 40;

std::atomic<bool> child_of_driver{false};

std::unique_ptr<Store> new_store() {
  for (std::uint64_t span = kStoreSpan; span >= (std::uint64_t{8} << 30); span /= 2) {
    try {
      return std::make_unique<Store>(span);
    } catch (const std::bad_alloc&) {  // little address space, because of a sanitizer or a limit
    }
  }
  throw std::bad_alloc();
}

Machine* new_machine() {
  auto* m = new Machine;
  try {
    m->settings = from_environment();
    m->checker.set_mode(m->settings.races);
    m->values.turn(m->settings.values);
    for (const Fault& fault : m->settings.fail) m->calls.plan(fault);
  } catch (const std::invalid_argument& error) {
    m->bad_environment = error.what();
  }
  // A child inherits no worker threads. It gets a machine whose mutex is free and whose calls are refused.
  pthread_atfork([] { machine().mutex.lock(); }, [] { machine().mutex.unlock(); },
                 [] {
                   if (machine().initialised) {
                     child_of_driver = true;
                     machine().space->hide_all();  // or the child would write to its parent's device
                   }
                   machine().mutex.unlock();
                 });
  return m;
}

}  // namespace

Machine& machine() {
  static Machine* const the_machine = new_machine();
  return *the_machine;
}

bool forked() { return child_of_driver.load(std::memory_order_relaxed); }

void Machine::start() {
  try {
    space = std::make_unique<Space>();
    host_store = new_store();
    host_pools.standard = host_pools.current = new_pool(*this, nullptr, 0);
    for (int i = 0; i < settings.devices; ++i) add_device(settings.memory_of(i));
  } catch (...) {  // remove everything made so far
    pools.clear();
    host_pools = {};
    devices.clear();
    host_store.reset();
    space.reset();
    throw;
  }
  initialised = true;
}

DeviceState& Machine::add_device(std::uint64_t bytes) {
  auto device = std::make_unique<DeviceState>();
  device->number = static_cast<int>(devices.size());
  device->total = bytes;
  device->store = new_store();
  device->primary_handle = contexts.reserve_new();
  devices.push_back(std::move(device));
  DeviceState& added = *devices.back();
  added.pools.standard = added.pools.current = new_pool(*this, &added, 0);
  return added;
}

void Machine::reset() {
  captures.clear();
  graph_execs.clear();
  graph_nodes.clear();
  graphs.clear();
  user_objects.clear();
  functions.clear();
  kernels.clear();
  libraries.clear();
  modules.clear();
  events.clear();
  for (const auto& [handle, context] : contexts.all()) {
    context->alive = false;
    context->legacy.reset();
    context->blocking.clear();
    context->recorder.reset();
    context->per_thread.clear();
    context->destroyed.clear();
  }
  streams.clear();
  contexts.clear();
  pools.clear();
  host_pools = {};
  handles.clear();
  space.reset();
  devices.clear();
  host_store.reset();
  findings.clear();
  checker = Checker(findings);
  checker.set_mode(settings.races);
  values.forget_all();
  calls.drop_plans();
  calls.reset_counts();
  initialised = ending = false;
  ++generation;
}

DeviceState& Machine::device(int number) {
  require(number >= 0 && static_cast<std::size_t>(number) < devices.size(), kInvalidDevice);
  return *devices[static_cast<std::size_t>(number)];
}

std::uint64_t Machine::free_bytes(const DeviceState& device) const {
  const std::uint64_t taken = device.used + settings.other;
  return taken < device.total ? device.total - taken : 0;
}

PhysicalRef Machine::new_physical(DeviceState* device, std::uint64_t size, std::uint64_t unit) {
  require(size <= kMaxDeviceMemory, kOutOfMemory);
  auto physical = std::make_shared<Physical>();
  physical->id = next_id++;
  physical->size = size;
  physical->extent = round_up(size, unit);
  physical->store = device != nullptr ? device->store.get() : host_store.get();
  if (device != nullptr) {
    require(physical->extent <= free_bytes(*device), kOutOfMemory);
    physical->device = device;
    physical->tracking = Tracking::kOwn;
    device->used += physical->extent;
    device->peak = std::max(device->peak, device->used);
  }
  return physical;
}

}  // namespace cudasim
