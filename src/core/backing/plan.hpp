// How an arena starts on a device: on virtual memory, with as many addresses as the driver gives, or on plain segments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/types.hpp"
#include "driver/device.hpp"

namespace arena {

// Addresses are reserved whole. More of them than memory means less mapping, but some platforms have few: the driver is
// asked for 8, 4, 2 and 9/8 times what the cap allows.
struct AddressRange {
  std::uint64_t address = 0;
  Granules count = 0;
};

// Throws the DriverError of the last try.
AddressRange reserve_addresses(const Device& device, Granules most);

// Which devices may access the memory besides its own; without a value, all that can.
using Peers = std::optional<std::vector<int>>;

// How virtual memory is created and opened. A platform may refuse what it said it can do, when memory is first opened:
// then RDMA goes, and peers that were not asked for by number.
struct MemoryKind {
  bool rdma = false;
  std::vector<int> peers;
  bool are_peers_chosen = false;
};

struct BackingPlan {
  bool is_plain = false;
  AddressRange range = {};  // of virtual memory
  MemoryKind kind = {};
  std::string remark = {};  // what is not as it usually is, and why; empty if nothing
};

// Throws UsageError for a peer that cannot access the memory.
BackingPlan plan_backing(const Device& device, Bytes cap, const Peers& peers);
BackingPlan plain_because(const std::string& reason);

}  // namespace arena
