#include "ledger.hpp"

#include <dlfcn.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "doing.hpp"
#include "lines.hpp"
#include "python.hpp"

namespace arena::ledger {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<const char*, 11> kNames{
    "",       "parameters", "buffers",     "gradients",     "optimizer state", "activations",
    "inputs", "workspaces", "temporaries", "other tensors", "unknown"};

// How a block ended, which says what it was for.
enum class End : std::uint8_t {
  kLive,
  kByProgram,    // by Python: a variable was gone
  kInOperation,  // by the operation that took it
  kInBackward,   // by autograd
  kUnwinding,    // after a failure: says nothing
};

struct Block {
  std::int64_t size = 0;
  Doing doing;
  Kind label = Kind::kNone;
  std::uint64_t born = 0;    // event
  std::uint32_t passes = 0;  // of autograd that had begun when it was born
  std::uint32_t ended_passes = 0;
  End end = End::kLive;
};

// A moment: what was live then is what lives now and was born before, and what ended since.
struct Moment {
  std::uint64_t event = 0;  // 0: there was none
  std::int64_t live = 0;
  std::uint64_t used = 0;  // on the device; only known for a failure
  double at = 0;
  std::vector<Block> ended;
};

struct Ledger {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, Block> blocks;  // by address
  std::uint64_t events = 0;
  std::int64_t live = 0;
  std::uint32_t passes = 0;
  int last_task = -1;
  bool is_unwinding = false, is_clearing = false;
  Moment peak, failure;
  const Clock::time_point began = Clock::now();
};
// Never destroyed: the allocator's calls end with the process.
Ledger& ledger() {
  static Ledger& only = *new Ledger;
  return only;
}
std::atomic<std::uint64_t> peak_event{0};

void stamp(Ledger& l, Moment& moment) {
  moment.event = l.events;
  moment.live = l.live;
  moment.at = std::chrono::duration<double>(Clock::now() - l.began).count();
  moment.ended.clear();
}

End end_of(const Ledger& l, const Block& block) {
  if (l.is_unwinding) return End::kUnwinding;
  const bool in_backward = torch::autograd::get_current_graph_task_id() >= 0;
  const bool in_operation = block.doing.operation == current_operation() && (in_backward || PyGILState_Check() == 0);
  if (in_operation) return End::kInOperation;
  return in_backward ? End::kInBackward : End::kByProgram;
}

// What a block was for, from all that is known in the end.
Kind kind_of(const Block& block) {
  const Doing& doing = block.doing;
  if (block.label != Kind::kNone) return block.label;
  if (!doing.is_known) return Kind::kUnknown;
  const bool is_over = block.end != End::kLive && block.end != End::kUnwinding;
  if (block.end == End::kInOperation) return Kind::kWorkspaces;
  if (doing.is_state && !is_over) return Kind::kState;
  if (doing.is_step) return Kind::kTemporaries;
  if (doing.is_backward && !doing.is_recomputed) {
    const bool survived = is_over ? block.end != End::kInBackward : doing.becomes_gradient;
    return survived ? Kind::kGradients : Kind::kTemporaries;
  }
  const bool was_kept = block.end == End::kInBackward || block.ended_passes > block.passes;
  if (doing.has_graph) return was_kept || !is_over ? Kind::kActivations : Kind::kTemporaries;
  if (block.end == End::kInBackward) return Kind::kActivations;  // only autograd had it: a mask, say
  if (doing.module != 0) return is_over && !was_kept ? Kind::kTemporaries : Kind::kOthers;
  const bool is_of_one_pass = block.ended_passes - block.passes <= 1;
  if (was_kept && is_of_one_pass) return Kind::kInputs;
  return is_over && !was_kept ? Kind::kTemporaries : Kind::kOthers;
}

using Key = std::tuple<std::uint32_t, std::uint32_t, Kind, bool>;  // line, module, kind, whether of the backward pass
using Sums = std::map<Key, std::pair<std::int64_t, std::int64_t>>;

Sums sums_at(const Ledger& l, const Moment& moment) {
  Sums sums;
  const auto add = [&](Block block) {
    if (block.end == End::kLive) block.ended_passes = l.passes;
    const Key key{block.doing.line, block.doing.module, kind_of(block), block.doing.is_backward};
    auto& [bytes, blocks] = sums[key];
    bytes += block.size;
    ++blocks;
  };
  for (const auto& [address, block] : l.blocks) {
    if (block.born <= moment.event) add(block);
  }
  for (const Block& block : moment.ended) add(block);
  return sums;
}

std::string moment_as_json(const Ledger& l, const Moment& moment) {
  if (moment.event == 0) return "null";
  std::string out = "{\"live\":" + std::to_string(moment.live) + ",\"used\":" + std::to_string(moment.used) +
                    ",\"at\":" + std::to_string(moment.at) + ",\"rows\":[";
  bool is_first = true;
  for (const auto& [key, sum] : sums_at(l, moment)) {
    const auto& [line, module, kind, is_backward] = key;
    if (!is_first) out += ',';
    is_first = false;
    out += '[' + std::to_string(sum.first) + ',' + std::to_string(sum.second) + ',' + std::to_string(line) + ',' +
           std::to_string(module) + ",\"" + kNames[static_cast<std::size_t>(kind)] + "\"," +
           (is_backward ? "true" : "false") + ']';
  }
  return out + "]}";
}

}  // namespace

void add_block(std::uint64_t address, std::int64_t size, const Doing& doing) {
  Ledger& l = ledger();
  const std::lock_guard lock(l.mutex);
  l.is_unwinding = false;
  ++l.events;
  l.live += size;
  l.blocks[address] = {.size = size, .doing = doing, .born = l.events, .passes = l.passes};
  if (l.live <= l.peak.live) return;
  stamp(l, l.peak);
  peak_event.store(l.events, std::memory_order_relaxed);
}

void remove_block(std::uint64_t address) {
  Ledger& l = ledger();
  const std::lock_guard lock(l.mutex);
  const auto it = l.blocks.find(address);
  if (it == l.blocks.end()) return;
  Block& block = it->second;
  ++l.events;
  l.live -= block.size;
  block.end = end_of(l, block);
  block.ended_passes = l.passes;
  if (l.is_clearing) block.label = Kind::kWorkspaces;
  if (block.born <= l.peak.event) l.peak.ended.push_back(block);
  if (block.born <= l.failure.event) l.failure.ended.push_back(block);
  l.blocks.erase(it);
}

void note_failure() {
  Ledger& l = ledger();
  const std::lock_guard lock(l.mutex);
  stamp(l, l.failure);
  using Used = unsigned long long (*)(int device);
  static const auto used = reinterpret_cast<Used>(dlsym(RTLD_DEFAULT, "cudasimUsed"));
  l.failure.used = used == nullptr ? 0 : used(0);
  l.is_unwinding = true;
}

void label(std::uint64_t address, Kind kind, std::uint32_t module, std::uint32_t line) {
  Ledger& l = ledger();
  const std::lock_guard lock(l.mutex);
  const auto it = l.blocks.find(address);
  if (it == l.blocks.end()) return;
  it->second.label = kind;
  if (module != 0) it->second.doing.module = module;
  if (line != 0) it->second.doing.line = line;
}

void label_if_new(std::uint64_t address, Kind kind) {
  Ledger& l = ledger();
  const std::lock_guard lock(l.mutex);
  const auto it = l.blocks.find(address);
  if (it != l.blocks.end() && it->second.label == Kind::kNone) it->second.label = kind;
}

void note_backward(int task) {
  Ledger& l = ledger();
  const std::lock_guard lock(l.mutex);
  if (task == l.last_task) return;
  l.last_task = task;
  ++l.passes;
}

std::int64_t most_live() {
  Ledger& l = ledger();
  const std::lock_guard lock(l.mutex);
  return l.peak.live;
}

std::uint64_t event_of_peak() { return peak_event.load(std::memory_order_relaxed); }

void clearing_workspaces(bool on) {
  Ledger& l = ledger();
  const std::lock_guard lock(l.mutex);
  l.is_clearing = on;
}

std::string as_json() {
  Ledger& l = ledger();
  std::string peak, failure;
  {
    const std::lock_guard lock(l.mutex);
    peak = moment_as_json(l, l.peak);
    failure = moment_as_json(l, l.failure);
  }
  return "{\"peak\":" + peak + ",\"failure\":" + failure + ",\"lines\":" + lines_as_json() + '}';
}

}  // namespace arena::ledger
