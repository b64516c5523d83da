#include "distinct.hpp"

#include <ATen/ops/_unique.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>

#include "memory.hpp"

namespace arena::values {
namespace {

constexpr std::int64_t kMostCounted = std::int64_t{4} << 20;  // elements of a tensor whose values are counted

// Never destroyed: the allocator's calls end with the process.
struct Bounds {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, std::int64_t> known;  // by the address of the memory
  std::atomic<std::size_t> size{0};
};
Bounds& bounds() {
  static Bounds& only = *new Bounds;
  return only;
}

std::uint64_t place_of(const at::Tensor& tensor) { return reinterpret_cast<std::uint64_t>(tensor.storage().data()); }

// Of the whole memory that a tensor looks at, or of its own elements if they are known.
std::int64_t bound_of(const at::Tensor& tensor) {
  Bounds& all = bounds();
  if (all.size.load(std::memory_order_relaxed) > 0) {
    const std::lock_guard lock(all.mutex);
    const auto it = all.known.find(place_of(tensor));
    if (it != all.known.end()) return it->second;
  }
  if (tensor.numel() > kMostCounted || knowledge(tensor) != Knowledge::kAll) return tensor.numel();
  return std::get<0>(at::_unique(alias(tensor), /*sorted=*/false)).numel();
}

}  // namespace

void note_chosen(const at::Tensor& result, const at::Tensor& source) {
  if (!is_plain(result) || result.numel() < 2 || knowledge(result) == Knowledge::kAll) return;
  const std::int64_t bound = bound_of(source);
  if (bound >= result.numel()) return;
  Bounds& all = bounds();
  const std::lock_guard lock(all.mutex);
  all.known[place_of(result)] = std::max<std::int64_t>(bound, 1);
  all.size = all.known.size();
}

std::int64_t distinct_at_most(const at::Tensor& tensor) {
  return is_plain(tensor) ? std::min(bound_of(tensor), tensor.numel()) : tensor.numel();
}

void forget_distinct(std::uint64_t address) {
  Bounds& all = bounds();
  if (all.size.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(all.mutex);
  all.known.erase(address);
  all.size = all.known.size();
}

}  // namespace arena::values
