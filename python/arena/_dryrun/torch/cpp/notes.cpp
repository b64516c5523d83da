#include "notes.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "memory.hpp"

namespace arena::values {

Listener listener{};
thread_local int Quiet::depth = 0;
thread_local std::uint64_t Inside::assumed = 0;

namespace {

struct Sized {
  std::int64_t id, count, most;  // the number that is not known
  std::int64_t bytes = 0, most_bytes = 0;
};
thread_local Sized latest{};  // of the numbers that this thread assumed

struct Running {
  SizedTotals totals;
  std::int64_t live = 0, live_most = 0;
};

// Never destroyed: the allocator's calls end with the process.
struct Table {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, Sized> known;  // by the address of the memory
  std::unordered_map<std::int64_t, Running> sums;  // by id
  std::atomic<std::size_t> size{0};                // of `known`

  void drop(std::uint64_t address) {
    const auto it = known.find(address);
    if (it == known.end()) return;
    Running& sum = sums[it->second.id];
    sum.live -= it->second.bytes;
    sum.live_most -= it->second.most_bytes;
    known.erase(it);
  }
  void add(std::uint64_t address, const Sized& one) {
    Running& sum = sums[one.id];
    sum.totals.allocations += known.count(address) == 0;
    drop(address);
    sum.totals.bytes = std::max<long long>(sum.totals.bytes, sum.live += one.bytes);
    sum.totals.most = std::max<long long>(sum.totals.most, sum.live_most += one.most_bytes);
    if (address != 0) known[address] = one;
  }
};
Table& table() {
  static Table& only = *new Table;
  return only;
}

// Likewise.
struct Choices {
  std::mutex mutex;
  std::unordered_set<std::uint64_t> known;  // by the address of the memory
  std::atomic<std::size_t> size{0};
};
Choices& choices() {
  static Choices& only = *new Choices;
  return only;
}

std::uint64_t memory_of(const at::Tensor& tensor) { return reinterpret_cast<std::uint64_t>(tensor.storage().data()); }

// With what number of elements a size goes along: itself or, for no element at all, any that is empty.
bool follows(const at::Tensor& tensor, std::int64_t count) {
  return std::any_of(tensor.sizes().begin(), tensor.sizes().end(),
                     [&](std::int64_t size) { return count > 0 ? size > 0 && size % count == 0 : size == 0; });
}

std::int64_t bytes_at(const at::Tensor& tensor, std::int64_t count, std::int64_t most) {
  if (count > 0) return static_cast<std::int64_t>(static_cast<double>(tensor.nbytes()) / count * most);
  std::int64_t rest = static_cast<std::int64_t>(tensor.element_size());
  for (const std::int64_t size : tensor.sizes()) rest *= size > 0 ? size : 1;
  return rest * most;
}

}  // namespace

Answer ask(const char* type, std::int64_t unknown, double& assumed) {
  if (Quiet::is_on() || listener.read == nullptr) return Answer::kAsComputed;
  return static_cast<Answer>(listener.read(type, unknown, &assumed));
}

std::int64_t assumed_count(const char* operation, std::int64_t most, std::int64_t& id) {
  long long given = -1;
  const long long count = listener.count != nullptr ? listener.count(operation, most, &given) : most;
  id = given;
  return std::clamp<std::int64_t>(count, 0, most);
}

void note_result(const at::Tensor& result, std::int64_t id, std::int64_t count, std::int64_t most) {
  latest = {.id = id,
            .count = count,
            .most = most,
            .bytes = static_cast<std::int64_t>(result.nbytes()),
            .most_bytes = bytes_at(result, count, most)};
  ++Inside::assumed;
  Table& t = table();
  const std::lock_guard lock(t.mutex);
  t.add(memory_of(result), latest);
  t.size = t.known.size();
}

void Inside::note(const at::Tensor& result) const {
  if (!is_plain(result) || !follows(result, latest.count)) return;
  note_result(result, latest.id, latest.count, latest.most);
}

bool has_sized() { return table().size.load(std::memory_order_relaxed) > 0; }

void note_following(const c10::OperatorHandle& op, const Stack& arguments, const Stack& results) {
  Table& t = table();
  std::optional<Sized> found;
  std::vector<std::uint64_t> inputs;
  for (const IValue& one : arguments) {
    each_tensor(one, [&](const at::Tensor& tensor) {
      if (!is_plain(tensor)) return;
      inputs.push_back(memory_of(tensor));
      const std::lock_guard lock(t.mutex);
      const auto it = t.known.find(inputs.back());
      if (it != t.known.end() && follows(tensor, it->second.count)) found = it->second;
    });
  }
  if (!found) return;
  for (const IValue& one : results) {
    each_tensor(one, [&](const at::Tensor& tensor) {
      if (!is_plain(tensor) || !follows(tensor, found->count)) return;
      if (std::find(inputs.begin(), inputs.end(), memory_of(tensor)) != inputs.end()) return;
      note_result(tensor, found->id, found->count, found->most);
    });
  }
}

void note_choice(const at::Tensor& tensor) {
  Choices& all = choices();
  const std::lock_guard lock(all.mutex);
  all.known.insert(memory_of(tensor));
  all.size = all.known.size();
}

bool is_choice(const at::Tensor& tensor) {
  Choices& all = choices();
  if (all.size.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(all.mutex);
  return all.known.count(memory_of(tensor)) > 0;
}

void note_copy(const at::Tensor& target, const at::Tensor& source) {
  if (!has_sized() || !is_plain(source) || target.storage().nbytes() != target.nbytes()) return;
  std::optional<Sized> found;
  {
    Table& t = table();
    const std::lock_guard lock(t.mutex);
    const auto it = t.known.find(memory_of(source));
    if (it != t.known.end() && t.known.count(memory_of(target)) == 0) found = it->second;
  }
  if (found && follows(target, found->count)) note_result(target, found->id, found->count, found->most);
}

void forget_memory(std::uint64_t address) {
  if (Choices& all = choices(); all.size.load(std::memory_order_relaxed) > 0) {
    const std::lock_guard lock(all.mutex);
    all.known.erase(address);
    all.size = all.known.size();
  }
  Table& t = table();
  if (t.size.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(t.mutex);
  t.drop(address);
  t.size = t.known.size();
}

int sized_totals(SizedTotals* totals, int room) {
  Table& t = table();
  const std::lock_guard lock(t.mutex);
  int count = 0;
  for (auto& [id, sum] : t.sums) {
    if (count == room) break;
    sum.totals.id = id;
    totals[count++] = sum.totals;
  }
  return count;
}

}  // namespace arena::values
