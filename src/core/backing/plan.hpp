// Chooses the backing of an arena on a device: virtual memory, with as many addresses as the driver reserves, or plain
// segments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/types.hpp"
#include "driver/device.hpp"

namespace arena {

// More addresses than memory mean less mapping, but some platforms have few. So reserve_addresses() tries 8, 4, 2 and
// 9/8 times the cap.
struct AddressRange {
  std::uint64_t address = 0;
  Granules count = 0;
};

// Throws the DriverError of the last attempt.
AddressRange reserve_addresses(const Device& device, Granules most);

// Which other devices may access the memory; without a value, all that can.
using Peers = std::optional<std::vector<int>>;

// How virtual memory is created and who gets access. When access is first set, a platform may refuse what it claims to
// support: then RDMA is dropped, and peers that were not chosen by number.
struct MemoryKind {
  bool rdma = false;
  std::vector<int> peers;
  bool are_peers_chosen = false;
};

struct BackingPlan {
  bool is_plain = false;
  AddressRange range = {};  // of virtual memory
  MemoryKind kind = {};
  std::string remark = {};  // what is unusual, and why; otherwise empty
};

// Throws UsageError for a peer that cannot access the memory.
BackingPlan plan_backing(const Device& device, Bytes cap, const Peers& peers);
BackingPlan plain_because(const std::string& reason);

}  // namespace arena
