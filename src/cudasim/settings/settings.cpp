#include "cudasim/settings/settings.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <stdexcept>

#include "cudasim/machine/calls.hpp"
#include "cudasim/machine/store.hpp"

extern char** environ;

namespace cudasim {
namespace {

constexpr std::string_view kByteForms = "a number of bytes (4294967296) or a number with a unit (80GiB, 512M, 80GB)";

[[noreturn]] void refuse(std::string_view value, std::string_view forms) {
  throw std::invalid_argument("'" + std::string(value) + "' is not accepted; write " + std::string(forms));
}

std::uint64_t parse_count(std::string_view text, std::uint64_t low, std::uint64_t high, std::string_view forms) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high) refuse(text, forms);
  return value;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// The same units as in Python (_util/sizes.py): K, M, G, T and KiB, ... are powers of 1024; KB, ... are powers of 1000.
std::uint64_t unit_of(std::string_view text, std::string_view whole, std::string_view forms) {
  std::string unit(text);
  for (char& letter : unit) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  if (unit.empty() || unit == "b") return 1;
  constexpr std::string_view letters = "kmgt";
  const std::size_t power = letters.find(unit.front()) + 1;
  const std::string_view rest = std::string_view(unit).substr(1);
  if (power == 0 || (!rest.empty() && rest != "b" && rest != "ib")) refuse(whole, forms);
  std::uint64_t size = 1;
  for (std::size_t i = 0; i < power; ++i) size *= rest == "b" ? std::uint64_t{1000} : 1024;
  return size;
}

}  // namespace

std::uint64_t parse_bytes(std::string_view text) { return parse_bytes(text, kByteForms); }

std::uint64_t parse_bytes(std::string_view text, std::string_view forms) {
  const std::string_view size = trimmed(text);
  double number = 0;
  const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), number, std::chars_format::fixed);
  if (error != std::errc{} || !std::isfinite(number) || number < 0) refuse(text, forms);
  const std::string_view unit(end, static_cast<std::size_t>(size.data() + size.size() - end));
  const double bytes = std::floor(number * static_cast<double>(unit_of(trimmed(unit), text, forms)));
  if (bytes > 1e15) refuse(text, forms);
  return static_cast<std::uint64_t>(bytes);
}

namespace {

bool parse_switch(std::string_view text) {
  if (text == "0" || text == "1") return text == "1";
  refuse(text, "0 or 1");
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// A card brings its memory, and whether it is the host's; both can be set to something else afterwards.
void set_card(Settings& s, std::string_view text) {
  s.card = find_card(text);
  s.memory = {s.card.memory.value_or(kStandardMemory)};
  s.integrated = s.card.integrated;
}

void set_devices(Settings& s, std::string_view text) {
  const std::string forms = "a number from 0 to " + std::to_string(kMaxDevices);
  s.devices = static_cast<int>(parse_count(text, 0, kMaxDevices, forms));
}

void set_memory(Settings& s, std::string_view text) {
  const std::string forms = std::string(kByteForms) + ", from 2MiB to 1TiB; for several devices a list (8GiB,24GiB)";
  std::vector<std::uint64_t> memory;
  for (const std::string_view part : split(text, ',')) {
    memory.push_back(parse_bytes(part, forms));
    if (memory.back() < kMinDeviceMemory || memory.back() > kMaxDeviceMemory) refuse(text, forms);
  }
  if (memory.size() > kMaxDevices) refuse(text, forms);
  if (memory.size() > 1) s.devices = static_cast<int>(memory.size());
  s.memory = std::move(memory);
}

void set_granularity(Settings& s, std::string_view text) {
  const std::string forms = "a power of two from 64KiB to 1GiB (2MiB)";
  const std::uint64_t value = parse_bytes(text, forms);
  if (value < (64 << 10) || value > (1 << 30) || (value & (value - 1)) != 0) refuse(text, forms);
  s.granularity = value;
}

void set_version(Settings& s, std::string_view text) {
  s.version = static_cast<int>(parse_count(text, 1000, 99990, "a version as the driver writes it: 13000 for 13.0"));
}

void set_delay(Settings& s, std::string_view text) {
  s.delay_us = parse_count(text, 0, 10'000'000, "microseconds, a whole number from 0 to 10000000");
}

void set_seed(Settings& s, std::string_view text) {
  s.seed = s.random_state = parse_count(text, 0, UINT64_MAX, "a whole number; 0 for delays that are all the same");
}

void set_races(Settings& s, std::string_view text) {
  if (text == "print") {
    s.races = Races::kPrint;
  } else if (text == "0" || text == "1") {
    s.races = text == "1" ? Races::kOn : Races::kOff;
  } else {
    refuse(text, "0, 1, or print (which also writes each report to standard error)");
  }
}

void set_fail(Settings& s, std::string_view text) {
  const std::string forms =
      "FUNCTION:NTH:ERROR or FUNCTION:NTH:ERROR:TIMES, several with commas (cuMemCreate:3:CUDA_ERROR_OUT_OF_MEMORY)";
  std::vector<Fault> faults;
  if (!text.empty()) {
    for (const std::string_view part : split(text, ',')) {
      const auto fields = split(part, ':');
      if (fields.size() != 3 && fields.size() != 4) refuse(text, forms);
      const std::uint64_t times = fields.size() == 3 ? 1 : parse_count(fields[3], 1, UINT64_MAX, forms);
      faults.push_back(parse_fault(fields[0], parse_count(fields[1], 1, UINT64_MAX, forms), times, fields[2]));
    }
  }
  s.fail = std::move(faults);
}

void set_dead(Settings& s, std::string_view text) {
  if (text == "report") {
    s.dead = Dead::kReport;
  } else if (text == "print") {
    s.dead = Dead::kPrint;
  } else if (text == "abort") {
    s.dead = Dead::kAbort;
  } else {
    refuse(text, "report, print (which also writes each finding to standard error) or abort (which ends the process)");
  }
}

void set_rdma(Settings& s, std::string_view text) {
  if (text == "broken") {
    s.rdma = Rdma::kBroken;
  } else if (text == "0" || text == "1") {
    s.rdma = text == "1" ? Rdma::kYes : Rdma::kNo;
  } else {
    refuse(text, "0, 1, or broken (the device says 1, but cuMemSetAccess fails)");
  }
}

int parse_device(std::string_view text, std::string_view forms) {
  return static_cast<int>(parse_count(text, 0, kMaxDevices - 1, forms));
}

void set_exclusive(Settings& s, std::string_view text) {
  std::vector<int> devices;
  if (!text.empty()) {
    for (const std::string_view part : split(text, ',')) {
      devices.push_back(parse_device(part, "numbers of devices with commas (0,2), or nothing"));
    }
  }
  s.exclusive = std::move(devices);
}

void set_peers(Settings& s, std::string_view text) {
  constexpr std::string_view forms = "all, none, or pairs of devices with commas (0-1,2-3)";
  std::vector<std::pair<int, int>> pairs;
  if (text != "all" && text != "none") {
    for (const std::string_view part : split(text, ',')) {
      const auto ends = split(part, '-');
      if (ends.size() != 2) refuse(text, forms);
      pairs.emplace_back(parse_device(ends[0], forms), parse_device(ends[1], forms));
    }
  }
  s.all_peers = text == "all";
  s.peers = std::move(pairs);
}

std::string get_peers(const Settings& s) {
  if (s.all_peers) return "all";
  std::string text;
  for (const auto& [one, other] : s.peers) {
    if (!text.empty()) text += ',';
    text += std::to_string(one) + "-" + std::to_string(other);
  }
  return text.empty() ? "none" : text;
}

std::string get_exclusive(const Settings& s) {
  std::string text;
  for (const int device : s.exclusive) {
    if (!text.empty()) text += ',';
    text += std::to_string(device);
  }
  return text;
}

std::string get_memory(const Settings& s) {
  std::string text;
  for (const std::uint64_t bytes : s.memory) {
    if (!text.empty()) text += ',';
    text += std::to_string(bytes);
  }
  return text;
}

std::string get_fail(const Settings& s) {
  std::string text;
  for (const Fault& f : s.fail) {
    if (!text.empty()) text += ',';
    text += f.function + ":" + std::to_string(f.skip + 1) + ":" + cu::error_name(f.error);
    if (f.times > 1) text += ":" + std::to_string(f.times);
  }
  return text;
}

std::string get_rdma(const Settings& s) { return s.rdma == Rdma::kNo ? "0" : s.rdma == Rdma::kYes ? "1" : "broken"; }

std::string get_dead(const Settings& s) {
  return s.dead == Dead::kReport ? "report" : s.dead == Dead::kPrint ? "print" : "abort";
}

std::string get_races(const Settings& s) {
  return s.races == Races::kOff ? "0" : s.races == Races::kOn ? "1" : "print";
}

using Set = void (*)(Settings&, std::string_view);
using Get = std::string (*)(const Settings&);
enum class Describes { kMachine, kBehaviour };

struct Entry {
  std::string_view name;
  Describes describes;
  Set set;
  Get get;
};

constexpr Entry machine_entry(std::string_view name, Set set, Get get) {
  return {.name = name, .describes = Describes::kMachine, .set = set, .get = get};
}

constexpr Entry behaviour_entry(std::string_view name, Set set, Get get) {
  return {.name = name, .describes = Describes::kBehaviour, .set = set, .get = get};
}

template <bool Settings::* field>
constexpr Set kSetSwitch = [](Settings& s, std::string_view v) { s.*field = parse_switch(v); };
template <bool Settings::* field>
constexpr Get kGetSwitch = [](const Settings& s) { return std::string(s.*field ? "1" : "0"); };
template <std::uint64_t Settings::* field>
constexpr Set kSetBytes = [](Settings& s, std::string_view v) { s.*field = parse_bytes(v); };
template <auto field>
constexpr Get kGetNumber = [](const Settings& s) { return std::to_string(s.*field); };

const std::array<Entry, 22> kEntries{{
    machine_entry("card", set_card, [](const Settings& s) { return s.card.path; }),
    machine_entry("devices", set_devices, kGetNumber<&Settings::devices>),
    machine_entry("memory", set_memory, get_memory),
    machine_entry("granularity", set_granularity, kGetNumber<&Settings::granularity>),
    machine_entry("vmm", kSetSwitch<&Settings::vmm>, kGetSwitch<&Settings::vmm>),
    machine_entry("version", set_version, kGetNumber<&Settings::version>),
    machine_entry("peers", set_peers, get_peers),
    machine_entry("integrated", kSetSwitch<&Settings::integrated>, kGetSwitch<&Settings::integrated>),
    machine_entry("rdma", set_rdma, get_rdma),
    behaviour_entry("delay", set_delay, kGetNumber<&Settings::delay_us>),
    behaviour_entry("seed", set_seed, kGetNumber<&Settings::seed>),
    behaviour_entry("other", kSetBytes<&Settings::other>, kGetNumber<&Settings::other>),
    behaviour_entry("page_cache", kSetBytes<&Settings::page_cache>, kGetNumber<&Settings::page_cache>),
    behaviour_entry("address_space", kSetBytes<&Settings::address_space>, kGetNumber<&Settings::address_space>),
    behaviour_entry("exclusive", set_exclusive, get_exclusive),
    behaviour_entry("sync_unmap", kSetSwitch<&Settings::sync_unmap>, kGetSwitch<&Settings::sync_unmap>),
    behaviour_entry("reuse", kSetSwitch<&Settings::reuse>, kGetSwitch<&Settings::reuse>),
    behaviour_entry("dead", set_dead, get_dead),
    behaviour_entry(
        "prices", [](Settings& s, std::string_view text) { s.prices = find_prices(text); },
        [](const Settings& s) { return s.prices->name(); }),
    behaviour_entry("races", set_races, get_races),
    behaviour_entry("values", kSetSwitch<&Settings::values>, kGetSwitch<&Settings::values>),
    behaviour_entry("fail", set_fail, get_fail),
}};

const Entry& entry(std::string_view name) {
  std::string known;
  for (const Entry& e : kEntries) {
    if (e.name == name) return e;
    known += (known.empty() ? "" : ", ") + std::string(e.name);
  }
  throw std::invalid_argument("there is no setting '" + std::string(name) + "'; the settings are " + known);
}

}  // namespace

std::uint64_t Settings::memory_of(int device) const {
  return memory.size() == 1 ? memory.front() : memory.at(static_cast<std::size_t>(device));
}

bool Settings::is_exclusive(int device) const {
  return std::find(exclusive.begin(), exclusive.end(), device) != exclusive.end();
}

bool Settings::can_access_peer(int device, int peer) const {
  if (device == peer) return false;
  const auto is_pair = [&](const auto& pair) {
    return pair == std::pair{device, peer} || pair == std::pair{peer, device};
  };
  return all_peers || std::any_of(peers.begin(), peers.end(), is_pair);
}

// splitmix64.
std::uint64_t Settings::next_delay() {
  if (seed == 0 || delay_us == 0) return delay_us;
  std::uint64_t x = random_state += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return (x ^ (x >> 31)) % (delay_us + 1);
}

bool describes_machine(std::string_view name) { return entry(name).describes == Describes::kMachine; }

void set(Settings& settings, std::string_view name, std::string_view value, std::string_view shown) {
  const Entry& e = entry(name);
  Settings changed = settings;
  try {
    e.set(changed, value);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string(shown) + ": " + error.what());
  }
  if (changed.memory.size() > 1 && changed.memory.size() != static_cast<std::size_t>(changed.devices)) {
    throw std::invalid_argument(std::string(shown) + ": " + std::to_string(changed.devices) +
                                " devices, but memory for " + std::to_string(changed.memory.size()) +
                                "; write one size for all, or one for each");
  }
  for (const std::uint64_t bytes : changed.memory) {
    if (bytes >= changed.granularity) continue;
    throw std::invalid_argument(std::string(shown) + ": a device of " + std::to_string(bytes) +
                                " bytes has no room for one granule of " + std::to_string(changed.granularity));
  }
  settings = std::move(changed);
}

std::string get(const Settings& settings, std::string_view name) { return entry(name).get(settings); }

Settings from_environment() {
  Settings settings;
  constexpr std::string_view prefix = "CUDASIM_";
  if (const char* card = std::getenv("CUDASIM_CARD"))
    set(settings, "card", card, "CUDASIM_CARD");  // memory overrides it
  std::string_view devices;                       // set last, so that it is checked against the list of memory sizes
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    if (!text.starts_with(prefix)) continue;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view shown = text.substr(0, equals);
    std::string name(shown.substr(prefix.size()));
    for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    if (name == "card") continue;
    if (name.starts_with("workspace_") || name == "cudnn_version") continue;  // read by src/standins
    if (name == "devices") {
      devices = text.substr(equals + 1);
      continue;
    }
    try {
      describes_machine(name);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(std::string(shown) + ": " + error.what());
    }
    set(settings, name, text.substr(equals + 1), shown);
  }
  if (!devices.empty()) set(settings, "devices", devices, "CUDASIM_DEVICES");
  return settings;
}

cu::Result parse_error(std::string_view text) {
#define CU_RESULT(ours, theirs, value, text_) \
  if (text == #theirs || text == #value) return cu::Result::ours;
#include "abi/results.def"
#undef CU_RESULT
  refuse(text, "the name or number of an error (CUDA_ERROR_OUT_OF_MEMORY or 2)");
}

Fault parse_fault(std::string_view function, std::uint64_t nth, std::uint64_t times, std::string_view error) {
  if (!is_function(function)) {
    refuse(function, "the name of a function of the driver, without _v2 (cuMemCreate)");
  }
  if (nth == 0 || times == 0) refuse("0", "a count from 1 up: 1 is the next call");
  const cu::Result code = parse_error(error);
  if (code == cu::Result::kSuccess) refuse(error, "the name or number of an error, not of success");
  return {.function = std::string(function), .skip = nth - 1, .times = times, .error = code};
}

}  // namespace cudasim
