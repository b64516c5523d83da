// Managed memory: where it was asked to be, and what a program said about its use. Advice is kept for each part of a range,
// and moves nothing: there is one copy, which all reach.
#include "cudasim/machine/advice.hpp"

#include <algorithm>
#include <cstring>

#include "cudasim/api/contexts.hpp"
#include "cudasim/machine/submit.hpp"

namespace cudasim {
namespace {

constexpr int kHostId = -1, kNoId = -2;  // CU_DEVICE_CPU, CU_DEVICE_INVALID

// The managed range that [ptr, ptr + count) lies in; pages are whole. Throws Refusal.
Range& managed_range(Call& call, cu::DevicePtr ptr, std::size_t count) {
  require(count > 0, kInvalidValue);
  Range* range = call.machine.space->find(ptr);
  require(range != nullptr && range->kind == RangeKind::kManaged, kInvalidValue);
  require(count <= range->address + round_up(range->size, kPage) - ptr, kInvalidValue);
  return *range;
}

void change(Range& range, cu::DevicePtr ptr, std::size_t count, const std::function<void(Advice&)>& apply) {
  const std::uint64_t begin = (ptr - range.address) / kPage * kPage;
  range.advice.change(begin, round_up(ptr - range.address + count, kPage), round_up(range.size, kPage), apply);
}

cu::MemLocation location_of(cu::Device device) {
  if (device == kHostId) return {cu::MemLocationType::kHost, 0};
  return {cu::MemLocationType::kDevice, device};
}

// A device that exists, or the host. Throws Refusal.
void check_location(Call& call, const cu::MemLocation& location, bool numa_too) {
  using enum cu::MemLocationType;
  if (location.type == kDevice) {
    call.machine.device(location.id);
    return;
  }
  const bool numa = location.type == kHostNuma || location.type == kHostNumaCurrent;
  require(location.type == kHost || (numa && numa_too), kInvalidValue);
  require(location.type != kHostNuma || location.id == 0, kInvalidValue);
}

Result prefetch(cu::DevicePtr ptr, std::size_t count, const cu::MemLocation& location, unsigned flags,
                cu::Stream handle) {
  return enter("cuMemPrefetchAsync", Need::kContext, [&](Call& call) {
    require(flags == 0, kInvalidValue);
    Range& range = managed_range(call, ptr, count);
    check_location(call, location, true);
    submit(call, stream_of(call, handle), {.name = call.name});
    change(range, ptr, count, [&](Advice& advice) { advice.prefetched = location; });
    return kSuccess;
  });
}

void apply_advice(Advice& now, cu::MemAdvise what, const cu::MemLocation& location) {
  using enum cu::MemAdvise;
  const int id = location.type == cu::MemLocationType::kDevice ? location.id : kHostId;
  switch (what) {
    case kSetReadMostly:
    case kUnsetReadMostly:
      now.read_mostly = what == kSetReadMostly;
      break;
    case kSetPreferredLocation:
      now.preferred = location;
      break;
    case kUnsetPreferredLocation:
      now.preferred = {};
      break;
    case kSetAccessedBy:
      now.accessed_by.insert(id);
      break;
    case kUnsetAccessedBy:
      now.accessed_by.erase(id);
      break;
  }
}

Result advise(cu::DevicePtr ptr, std::size_t count, cu::MemAdvise what, const cu::MemLocation& location) {
  return enter("cuMemAdvise", Need::kContext, [&](Call& call) {
    using enum cu::MemAdvise;
    require(cu::bits(what) >= cu::bits(kSetReadMostly) && cu::bits(what) <= cu::bits(kUnsetAccessedBy), kInvalidValue);
    Range& range = managed_range(call, ptr, count);
    if (what == kSetPreferredLocation) check_location(call, location, true);
    if (what == kSetAccessedBy || what == kUnsetAccessedBy) check_location(call, location, false);
    change(range, ptr, count, [&](Advice& advice) { apply_advice(advice, what, location); });
    return kSuccess;
  });
}

int id_of(const cu::MemLocation& location) {
  using enum cu::MemLocationType;
  return location.type == kDevice ? location.id : location.type == kNone ? kNoId : kHostId;
}

int number_for(const Advice& common, cu::MemRangeAttribute what) {
  using enum cu::MemRangeAttribute;
  switch (what) {
    case kReadMostly:
      return common.read_mostly ? 1 : 0;
    case kPreferredLocation:
      return id_of(common.preferred);
    case kLastPrefetchLocation:
      return id_of(common.prefetched);
    case kPreferredLocationType:
      return static_cast<int>(cu::bits(common.preferred.type));
    case kPreferredLocationId:
      return common.preferred.id;
    case kLastPrefetchLocationType:
      return static_cast<int>(cu::bits(common.prefetched.type));
    case kLastPrefetchLocationId:
      return common.prefetched.id;
    case kAccessedBy:
      break;
  }
  return 0;
}

void answer(const Advice& common, cu::MemRangeAttribute what, void* data, std::size_t size) {
  using enum cu::MemRangeAttribute;
  require(data != nullptr && size > 0 && size % sizeof(int) == 0, kInvalidValue);
  require(cu::bits(what) >= 1 && cu::bits(what) <= cu::bits(kLastPrefetchLocationId), kInvalidValue);
  if (what != kAccessedBy) {
    require(size == sizeof(int), kInvalidValue);
    const int number = number_for(common, what);
    std::memcpy(data, &number, sizeof number);
    return;
  }
  std::vector<int> devices(size / sizeof(int), kNoId);
  std::copy_n(common.accessed_by.begin(), std::min(devices.size(), common.accessed_by.size()), devices.begin());
  std::memcpy(data, devices.data(), size);
}

}  // namespace
}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuMemPrefetchAsync(cu::DevicePtr ptr, std::size_t count, cu::Device device, cu::Stream stream) {
  return prefetch(ptr, count, location_of(device), 0, stream);
}

CUDASIM_EXPORT Result cuMemPrefetchAsync_v2(cu::DevicePtr ptr, std::size_t count, cu::MemLocation location,
                                            unsigned flags, cu::Stream stream) {
  return prefetch(ptr, count, location, flags, stream);
}

CUDASIM_EXPORT Result cuMemAdvise(cu::DevicePtr ptr, std::size_t count, cu::MemAdvise advice, cu::Device device) {
  return advise(ptr, count, advice, location_of(device));
}

CUDASIM_EXPORT Result cuMemAdvise_v2(cu::DevicePtr ptr, std::size_t count, cu::MemAdvise advice,
                                     cu::MemLocation location) {
  return advise(ptr, count, advice, location);
}

CUDASIM_EXPORT Result cuMemRangeGetAttribute(void* data, std::size_t size, cu::MemRangeAttribute attribute,
                                             cu::DevicePtr ptr, std::size_t length) {
  return enter("cuMemRangeGetAttribute", Need::kContext, [&](Call& call) {
    const Range& range = managed_range(call, ptr, length);
    answer(range.advice.common(ptr - range.address, ptr - range.address + length), attribute, data, size);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuMemRangeGetAttributes(void** data, std::size_t* sizes, cu::MemRangeAttribute* attributes,
                                              std::size_t count, cu::DevicePtr ptr, std::size_t length) {
  return enter("cuMemRangeGetAttributes", Need::kContext, [&](Call& call) {
    require(data != nullptr && sizes != nullptr && attributes != nullptr && count > 0, kInvalidValue);
    const Range& range = managed_range(call, ptr, length);
    const Advice common = range.advice.common(ptr - range.address, ptr - range.address + length);
    for (std::size_t i = 0; i < count; ++i) answer(common, attributes[i], data[i], sizes[i]);
    return kSuccess;
  });
}
