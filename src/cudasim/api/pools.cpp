#include "cudasim/api/pools.hpp"

#include <cstring>

#include "cudasim/api/capture.hpp"
#include "cudasim/api/memory.hpp"
#include "cudasim/machine/submit.hpp"

namespace cudasim {
namespace {

using PoolRef = std::shared_ptr<Pool>;

constexpr std::uint64_t kUnit = 512;

PoolRef pool_of(Call& call, cu::MemPool handle) {
  PoolRef pool = find_live(call, call.machine.pools, handle);
  require(pool != nullptr, kInvalidValue);
  if (pool->destroyed) {  // but still there, because some of its memory is in use
    report_dead(call, call.machine.pools.kind(), reinterpret_cast<std::uint64_t>(handle), /*was_issued=*/true,
                pool->death);
    throw Refusal{kInvalidValue};
  }
  return pool;
}

void release_kept(Machine& m, Pool& pool, std::size_t index) {
  Range& range = *m.space->find_exact(pool.kept[index].address);
  pool.reserved -= m.space->mapping_at(range.address)->size;
  free_allocation(m, range, "");
  pool.kept.erase(pool.kept.begin() + static_cast<std::ptrdiff_t>(index));
}

// Releases kept memory whose free was reached, down to `keep` reserved bytes.
void shrink(Machine& m, Pool& pool, std::uint64_t keep) {
  for (std::size_t i = pool.kept.size(); i-- > 0 && pool.reserved > keep;) {
    if (pool.kept[i].freed.reached()) release_kept(m, pool, i);
  }
}

void remove_if_unused(Machine& m, const PoolRef& pool) {
  if (!pool->destroyed || pool->used > 0) return;
  shrink(m, *pool, 0);
  if (pool->kept.empty()) m.pools.erase(pool->handle, pool->death);
}

// Best fit: the smallest kept piece that is large enough and that `stream` may use now.
std::size_t find_kept(Machine& m, const Pool& pool, const StreamRef& stream, std::uint64_t size) {
  std::size_t best = pool.kept.size();
  std::uint64_t best_size = 2 * size + 1;  // more than twice the size would be wasteful
  for (std::size_t i = 0; i < pool.kept.size(); ++i) {
    const Pool::Kept& kept = pool.kept[i];
    const std::uint64_t found = m.space->mapping_at(kept.address)->size;
    if (found < size || found >= best_size) continue;
    const bool mine = kept.freed.stream == stream;
    if (!mine && !(kept.freed.reached() && pool.reuse[1]) && !pool.reuse[2]) continue;
    best = i;
    best_size = found;
  }
  return best;
}

Effect whole_of(const Range& range, const StreamRef& stream) {
  return {.address = range.address,
          .size = range.size,
          .write = true,
          .copy = false,
          .context = stream->context,
          .by_driver = true};
}

Range& allocate_new(Call& call, Pool& pool, std::uint64_t size) {
  Machine& m = call.machine;
  const std::uint64_t extent = round_up(size, kPage);
  if (pool.max_size > 0 && pool.reserved + extent > pool.max_size) shrink(m, pool, 0);
  require(pool.max_size == 0 || pool.reserved + extent <= pool.max_size, kOutOfMemory);
  if (pool.device != nullptr && extent > m.free_bytes(*pool.device)) shrink(m, pool, 0);
  const PhysicalRef physical = m.new_physical(pool.device, size, kPage);
  Range& range = new_allocation(m, RangeKind::kPool, physical, 0, kPage);
  range.pool = pool.handle;
  pool.reserved += extent;
  pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
  return range;
}

void keep(Machine& m, Range& range, const Mark& mark, const Clock& clock) {
  const PoolRef pool = m.pools.find(range.pool);
  range.freed = true;
  pool->used -= round_up(range.size, kPage);
  pool->kept.push_back({range.address, mark, clock});
  remove_if_unused(m, pool);
}

Result allocate(Call& call, cu::DevicePtr* out, std::size_t size, cu::MemPool pool_handle, cu::Stream handle) {
  require(out != nullptr && size > 0, kInvalidValue);
  require(size <= kMaxDeviceMemory, kOutOfMemory);
  Machine& m = call.machine;
  const StreamRef stream = stream_of(call, handle);
  refuse_capture(*stream, kCaptureUnsupported);  // memory nodes of graphs are not simulated
  const PoolRef pool = pool_of(call, pool_handle != nullptr ? pool_handle : stream->context->device->pools.current);
  const std::uint64_t wanted = round_up(size, kUnit);
  const std::size_t index = find_kept(m, *pool, stream, round_up(size, kPage));
  Range* range = nullptr;
  Pool::Kept before{0, {}, {}};
  Work work{.name = call.name};
  if (index < pool->kept.size()) {
    before = pool->kept[index];
    range = m.space->find_exact(before.address);
    stream->clock.join(pool->kept[index].clock);
    if (!pool->kept[index].freed.reached()) work.after.push_back(pool->kept[index].freed);
    pool->kept.erase(pool->kept.begin() + static_cast<std::ptrdiff_t>(index));
    range->freed = false;
    range->size = wanted;
    const std::uint64_t extent = m.space->mapping_at(range->address)->size;
    if (m.values.on()) m.values.mark(*m.space, range->address, extent, Content::kUnknown);
  } else {
    range = &allocate_new(call, *pool, wanted);
  }
  range->context = nullptr;  // it belongs to the pool, and outlives the context
  Mapping* mapping = m.space->mapping_at(range->address);
  mapping->readable = pool->readable;
  mapping->writable = pool->writable;
  pool->used += round_up(range->size, kPage);
  pool->used_high = std::max(pool->used_high, pool->used);
  // Others may use the memory only after the stream has reached this point: for the checker, that is a write.
  work.effects.push_back(whole_of(*range, stream));
  try {
    m.space->show({mapping});
    submit(call, stream, std::move(work));
  } catch (...) {
    keep(m, *range, before.freed, before.clock);
    throw;
  }
  *out = range->address;
  return kSuccess;
}

bool is_reuse(cu::MemPoolAttribute what) { return cu::bits(what) >= 1 && cu::bits(what) <= 3; }

std::uint64_t* counter(Pool& pool, cu::MemPoolAttribute what) {
  using enum cu::MemPoolAttribute;
  switch (what) {
    case kReleaseThreshold:
      return &pool.threshold;
    case kReservedCurrent:
      return &pool.reserved;
    case kReservedHigh:
      return &pool.reserved_high;
    case kUsedCurrent:
      return &pool.used;
    case kUsedHigh:
      return &pool.used_high;
    default:
      return nullptr;
  }
}

DeviceState& device_at(Call& call, const cu::MemLocation* location) {
  require(location != nullptr && location->type == cu::MemLocationType::kDevice, kInvalidValue);
  return call.machine.device(location->id);
}

Result get_pool(std::string_view name, cu::MemPool* out, const std::function<cu::MemPool(Call&)>& choose) {
  return enter(name, Need::kDriver, [&](Call& call) {
    require(out != nullptr, kInvalidValue);
    *out = choose(call);
    return kSuccess;
  });
}

PoolChoice& pools_of(Machine& m, DeviceState* device) { return device != nullptr ? device->pools : m.host_pools; }

// Host pools exist since CUDA 13. Pools of a NUMA node and of managed memory are not simulated.
DeviceState* check_place(Call& call, const cu::MemLocation* location, cu::MemAllocationType type) {
  require(location != nullptr && type != cu::MemAllocationType::kInvalid, kInvalidValue);
  require(type == cu::MemAllocationType::kPinned, kNotSupported);
  require(location->type != cu::MemLocationType::kHostNuma, kNotSupported);
  const bool host = location->type == cu::MemLocationType::kHost && call.machine.settings.version >= 13000;
  return host ? nullptr : &device_at(call, location);
}

void set_current_pool(Call& call, DeviceState* device, cu::MemPool handle) {
  require(pool_of(call, handle)->device == device, kInvalidValue);
  pools_of(call.machine, device).current = handle;
}

}  // namespace

cu::MemPool new_pool(Machine& m, DeviceState* device, std::uint64_t max_size) {
  auto pool = std::make_shared<Pool>();
  pool->handle = m.pools.reserve(m.settings.reuse);
  pool->device = device;
  pool->is_default = pools_of(m, device).standard == nullptr;
  pool->max_size = max_size;
  pool->readable = pool->writable = device != nullptr ? device->bit() : kHostBit;
  m.pools.add(pool->handle, pool);
  return pool->handle;
}

void trim_pools(Machine& m) {
  std::vector<PoolRef> all;
  for (const auto& [handle, pool] : m.pools.all()) all.push_back(pool);
  for (const PoolRef& pool : all) {
    shrink(m, *pool, pool->threshold);
    remove_if_unused(m, pool);
  }
}

void return_to_pool(Call& call, Range& range) {
  const Mapping& mapping = *call.machine.space->mapping_at(range.address);
  if (call.machine.checker.on()) {
    call.machine.checker.check_removal(call.name, mapping.physical->history, 0, mapping.size, mapping.address);
  }
  keep(call.machine, range, {nullptr, 0}, {});
}

}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuMemAllocAsync(cu::DevicePtr* ptr, std::size_t size, cu::Stream stream) {
  return enter("cuMemAllocAsync", Need::kContext,
               [&](Call& call) { return allocate(call, ptr, size, nullptr, stream); });
}

CUDASIM_EXPORT Result cuMemAllocFromPoolAsync(cu::DevicePtr* ptr, std::size_t size, cu::MemPool pool,
                                              cu::Stream stream) {
  return enter("cuMemAllocFromPoolAsync", Need::kContext, [&](Call& call) {
    require(pool != nullptr, kInvalidValue);
    return allocate(call, ptr, size, pool, stream);
  });
}

CUDASIM_EXPORT Result cuMemFreeAsync(cu::DevicePtr ptr, cu::Stream handle) {
  return enter("cuMemFreeAsync", Need::kContext, [&](Call& call) {
    Machine& m = call.machine;
    const StreamRef stream = stream_of(call, handle);
    refuse_capture(*stream, kCaptureUnsupported);  // memory nodes of graphs are not simulated
    Range* range = m.space->find_exact(ptr);
    require(range != nullptr && range->kind == RangeKind::kPool && !range->freed, kInvalidValue);
    // All accesses must be ordered before the free: for the checker, that is a write.
    const Mark mark = submit(call, stream, {.name = "cuMemFreeAsync", .effects = {whole_of(*range, stream)}});
    keep(m, *range, mark, stream->clock);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuDeviceGetDefaultMemPool(cu::MemPool* pool, cu::Device device) {
  return get_pool("cuDeviceGetDefaultMemPool", pool,
                  [&](Call& call) { return call.machine.device(device).pools.standard; });
}

CUDASIM_EXPORT Result cuDeviceGetMemPool(cu::MemPool* pool, cu::Device device) {
  return get_pool("cuDeviceGetMemPool", pool, [&](Call& call) { return call.machine.device(device).pools.current; });
}

CUDASIM_EXPORT Result cuMemGetDefaultMemPool(cu::MemPool* pool, cu::MemLocation* location, cu::MemAllocationType type) {
  return get_pool("cuMemGetDefaultMemPool", pool,
                  [&](Call& call) { return pools_of(call.machine, check_place(call, location, type)).standard; });
}

CUDASIM_EXPORT Result cuMemGetMemPool(cu::MemPool* pool, cu::MemLocation* location, cu::MemAllocationType type) {
  return get_pool("cuMemGetMemPool", pool,
                  [&](Call& call) { return pools_of(call.machine, check_place(call, location, type)).current; });
}

CUDASIM_EXPORT Result cuDeviceSetMemPool(cu::Device device, cu::MemPool pool) {
  return enter("cuDeviceSetMemPool", Need::kDriver, [&](Call& call) {
    set_current_pool(call, &call.machine.device(device), pool);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemSetMemPool(cu::MemLocation* location, cu::MemAllocationType type, cu::MemPool pool) {
  return enter("cuMemSetMemPool", Need::kDriver, [&](Call& call) {
    set_current_pool(call, check_place(call, location, type), pool);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemPoolCreate(cu::MemPool* pool, const cu::MemPoolProps* props) {
  return enter("cuMemPoolCreate", Need::kDriver, [&](Call& call) {
    require(pool != nullptr && props != nullptr, kInvalidValue);
    DeviceState* device = check_place(call, &props->location, props->type);
    const bool shared = props->handle_types != cu::MemHandleType::kNone;
    require(!shared, device != nullptr ? kNotSupported : kInvalidValue);  // no driver can share host pools
    *pool = new_pool(call.machine, device, props->max_size);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemPoolDestroy(cu::MemPool handle) {
  return enter("cuMemPoolDestroy", Need::kDriver, [&](Call& call) {
    const PoolRef pool = pool_of(call, handle);
    require(!pool->is_default, kInvalidValue);
    pool->destroyed = true;
    pool->death = death_by(call);
    PoolChoice& choice = pools_of(call.machine, pool->device);
    if (choice.current == handle) choice.current = choice.standard;
    remove_if_unused(call.machine, pool);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemPoolGetAttribute(cu::MemPool handle, cu::MemPoolAttribute what, void* value) {
  return enter("cuMemPoolGetAttribute", Need::kDriver, [&](Call& call) {
    require(value != nullptr, kInvalidValue);
    const PoolRef pool = pool_of(call, handle);
    check_safe_in_capture(call);
    if (is_reuse(what)) {
      const int on = pool->reuse[cu::bits(what) - 1] ? 1 : 0;
      std::memcpy(value, &on, sizeof on);
      return kSuccess;
    }
    const std::uint64_t* from = counter(*pool, what);
    require(from != nullptr, kInvalidValue);
    std::memcpy(value, from, sizeof *from);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemPoolSetAttribute(cu::MemPool handle, cu::MemPoolAttribute what, void* value) {
  return enter("cuMemPoolSetAttribute", Need::kDriver, [&](Call& call) {
    using enum cu::MemPoolAttribute;
    require(value != nullptr, kInvalidValue);
    const PoolRef pool = pool_of(call, handle);
    check_safe_in_capture(call);
    if (is_reuse(what)) {
      int on = 0;
      std::memcpy(&on, value, sizeof on);
      pool->reuse[cu::bits(what) - 1] = on != 0;
      return kSuccess;
    }
    std::uint64_t given = 0;
    std::memcpy(&given, value, sizeof given);
    // The high-water marks can only be reset; the current values cannot be set.
    if (what == kReservedHigh || what == kUsedHigh) {
      require(given == 0, kInvalidValue);
      (what == kReservedHigh ? pool->reserved_high : pool->used_high) =
          what == kReservedHigh ? pool->reserved : pool->used;
      return kSuccess;
    }
    require(what == kReleaseThreshold, kInvalidValue);
    pool->threshold = given;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemPoolSetAccess(cu::MemPool handle, const cu::MemAccessDesc* desc, std::size_t count) {
  return enter("cuMemPoolSetAccess", Need::kDriver, [&](Call& call) {
    require(desc != nullptr && count > 0, kInvalidValue);
    const PoolRef pool = pool_of(call, handle);
    std::uint64_t readable = pool->readable, writable = pool->writable;
    for (std::size_t i = 0; i < count; ++i) {
      const DeviceState& device = device_at(call, &desc[i].location);
      require(is_access(desc[i].flags), kInvalidValue);
      const bool reachable = pool->device == nullptr || pool->device == &device ||
                             call.machine.settings.can_access_peer(device.number, pool->device->number);
      require(reachable, kInvalidDevice);
      const bool read = desc[i].flags != cu::MemAccess::kNone;
      const bool write = desc[i].flags == cu::MemAccess::kReadWrite;
      require(&device != pool->device || write, kInvalidDevice);  // the owner always has access (cuda-python#2807)
      readable = read ? readable | device.bit() : readable & ~device.bit();
      writable = write ? writable | device.bit() : writable & ~device.bit();
    }
    pool->readable = readable;
    pool->writable = writable;
    call.machine.space->each_range([&](const Range& range) {
      if (range.pool != handle) return;
      Mapping* mapping = call.machine.space->mapping_at(range.address);
      mapping->readable = pool->readable;
      mapping->writable = pool->writable;
    });
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemPoolGetAccess(cu::MemAccess* flags, cu::MemPool handle, cu::MemLocation* location) {
  return enter("cuMemPoolGetAccess", Need::kDriver, [&](Call& call) {
    require(flags != nullptr, kInvalidValue);
    const PoolRef pool = pool_of(call, handle);
    const bool host = location != nullptr && location->type == cu::MemLocationType::kHost;
    const std::uint64_t bit = host ? kHostBit : device_at(call, location).bit();
    *flags = (pool->writable & bit) != 0   ? cu::MemAccess::kReadWrite
             : (pool->readable & bit) != 0 ? cu::MemAccess::kRead
                                           : cu::MemAccess::kNone;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemPoolTrimTo(cu::MemPool handle, std::size_t keep_bytes) {
  return enter("cuMemPoolTrimTo", Need::kDriver, [&](Call& call) {
    shrink(call.machine, *pool_of(call, handle), keep_bytes);
    return kSuccess;
  });
}
