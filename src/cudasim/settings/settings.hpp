// The simulated driver's settings: defaults, text forms, and error messages. Knows nothing of the machine that they
// describe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "abi/types.hpp"
#include "cudasim/settings/card.hpp"
#include "cudasim/settings/prices.hpp"

namespace cudasim {

namespace cu = arena::cu;

enum class Races { kOff, kOn, kPrint };
// Whether memory can be created for GPUDirect RDMA. kBroken: the device says yes, but cuMemSetAccess fails.
enum class Rdma { kNo, kYes, kBroken };
enum class Dead { kReport, kPrint, kAbort };  // what happens when a dead handle is used

// A planned failure: after `skip` more calls, `times` calls fail with `error`.
struct Fault {
  std::string function;
  std::uint64_t skip = 0;
  std::uint64_t times = 1;
  cu::Result error = cu::Result::kUnknown;
};

inline constexpr std::uint64_t kStandardMemory = std::uint64_t{8} << 30;

struct Settings {
  int devices = 1;
  std::vector<std::uint64_t> memory{kStandardMemory};  // one for all devices, or one for each
  Card card;
  std::uint64_t granularity = std::uint64_t{2} << 20;
  bool vmm = true;
  int version = 13000;
  std::uint64_t delay_us = 0;
  std::uint64_t seed = 0;          // 0: every operation takes the whole delay
  std::uint64_t random_state = 0;  // starts at the seed, and advances with every operation
  std::uint64_t other = 0;
  PriceTableRef prices = find_prices(kDefaultPrices);
  Races races = Races::kOff;
  bool values = false;  // which bytes of device memory are known is tracked
  Dead dead = Dead::kReport;
  bool reuse = true;                // handles of destroyed objects are reused
  std::uint64_t address_space = 0;  // bytes that can be reserved; 0: no limit
  std::vector<int> exclusive;       // devices that another process uses exclusively
  bool all_peers = true;
  std::vector<std::pair<int, int>> peers;  // if not all_peers
  bool integrated = false;
  std::uint64_t page_cache = 0;  // bytes of an integrated device that the host's page cache holds
  Rdma rdma = Rdma::kYes;
  bool sync_unmap = false;  // unmapping and setting access wait for the work of the device
  std::vector<Fault> fail;

  std::uint64_t memory_of(int device) const;
  bool is_exclusive(int device) const;
  bool can_access_peer(int device, int peer) const;
  std::uint64_t next_delay();  // for the operation being queued
};

// Whether a setting describes the machine, which is fixed while it runs, and not how it behaves.
bool describes_machine(std::string_view name);

// Sets one setting from text. Throws std::invalid_argument that names the setting (as `shown`, e.g. the environment
// variable), the value, and the accepted forms.
void set(Settings& settings, std::string_view name, std::string_view value, std::string_view shown);
std::string get(const Settings& settings, std::string_view name);

// A size in the form of settings: 4294967296, 80GiB. Throws std::invalid_argument, which names `forms` if given.
std::uint64_t parse_bytes(std::string_view text);
std::uint64_t parse_bytes(std::string_view text, std::string_view forms);

// All CUDASIM_* variables of the environment. Throws like `set`, and for an unknown CUDASIM_* variable.
Settings from_environment();

cu::Result parse_error(std::string_view text);  // a name or a number; throws std::invalid_argument
Fault parse_fault(std::string_view function, std::uint64_t nth, std::uint64_t times, std::string_view error);

}  // namespace cudasim
