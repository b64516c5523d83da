#include "core/backing/plan.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "base/units.hpp"

namespace arena {
namespace {

struct Ratio {
  Granules times, by;
  const char* text;
};
constexpr std::array kRatios = {Ratio{8, 1, "8"}, Ratio{4, 1, "4"}, Ratio{2, 1, "2"}, Ratio{9, 8, "9/8"}};

Granules count_at(const Ratio& ratio, Granules most) {
  return std::max<Granules>(1, (most * ratio.times + ratio.by - 1) / ratio.by);
}

// Whether the platform refuses to reserve addresses, so that plain segments may still work. Other errors are fatal.
bool refuses_addresses(const DriverError& error) {
  using enum cu::Result;
  constexpr std::array kRefusals = {kOutOfMemory, kNotSupported, kNotPermitted, kInvalidValue};
  return std::find(kRefusals.begin(), kRefusals.end(), static_cast<cu::Result>(error.code())) != kRefusals.end();
}

std::string join(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text.empty() ? "none" : text;
}

MemoryKind kind_on(const Device& device, const Peers& peers) {
  const std::vector<int>& able = device.peers();
  for (const int peer : peers.value_or(std::vector<int>())) {
    if (std::find(able.begin(), able.end(), peer) != able.end()) continue;
    throw UsageError("peers: device " + std::to_string(peer) + " cannot access the memory of device " +
                     std::to_string(device.number()) + "; devices that can: " + join(able));
  }
  return {.rdma = device.has_rdma(), .peers = peers.value_or(able), .are_peers_chosen = peers.has_value()};
}

std::string remark_on(const AddressRange& range, Granules most, Bytes granule) {
  if (range.count >= count_at(kRatios.front(), most)) return {};
  for (const Ratio& ratio : kRatios) {
    if (range.count < count_at(ratio, most)) continue;
    return "the driver reserves only " + format_bytes(range.count * granule) + " of addresses, " + ratio.text +
           " times the cap: expect more mapping";
  }
  return {};
}

}  // namespace

AddressRange reserve_addresses(const Device& device, Granules most) {
  for (const Ratio& ratio : kRatios) {
    const Granules count = count_at(ratio, most);
    try {
      return {device.reserve_addresses(count * device.granule()), count};
    } catch (const DriverError&) {
      if (&ratio == &kRatios.back()) throw;
    }
  }
  return {};
}

BackingPlan plain_because(const std::string& reason) {
  return {.is_plain = true, .remark = reason + ": plain segments are used, so free memory can be fragmented"};
}

BackingPlan plan_backing(const Device& device, Bytes cap, const Peers& peers) {
  const Bytes granule = device.granule();
  if (!device.virtual_memory()) return plain_because("the device has no virtual memory");
  if (!std::has_single_bit(granule))
    return plain_because("granules of " + format_bytes(granule) + " are not supported");
  const Granules most = round_up(cap, granule) / granule;
  BackingPlan plan{.kind = kind_on(device, peers)};
  try {
    plan.range = reserve_addresses(device, most);
  } catch (const DriverError& error) {
    if (!refuses_addresses(error)) throw;
    return plain_because("the driver reserves no addresses for a cap of " + format_bytes(cap) + " (" + error.name() +
                         ")");
  }
  plan.remark = remark_on(plan.range, most, granule);
  return plan;
}

}  // namespace arena
