// A value for each block of a trace.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "trace/trace.hpp"
#include "trace/untrusted_map.hpp"

namespace arena {

// An array if the block numbers are dense, as in most traces; otherwise a map.
template <class Value>
class ByBlock {
 public:
  explicit ByBlock(const Trace& trace) {
    std::uint64_t first = ~std::uint64_t{0}, last = 0;
    for (const TraceEvent event : trace.events()) {
      if (event.kind != EventKind::kAllocate) continue;
      first = std::min(first, event.block);
      last = std::max(last, event.block);
    }
    if (first > last || last - first >= 2 * trace.events().size()) return;
    first_ = first;
    near_.resize(last - first + 1);
  }

  // The block must be allocated somewhere in the trace.
  Value& at(std::uint64_t block) { return is_near(block) ? near_[block - first_] : far_[block]; }
  Value find(std::uint64_t block) const {
    if (is_near(block)) return near_[block - first_];
    const auto it = far_.find(block);
    return it == far_.end() ? Value{} : it->second;
  }
  // Returns the value and resets it.
  Value take(std::uint64_t block) {
    if (is_near(block)) return std::exchange(near_[block - first_], Value{});
    const Value found = find(block);
    far_.erase(block);
    return found;
  }
  template <class Function>
  void each(const Function& function) const {
    for (const Value& value : near_) function(value);
    for (const auto& [block, value] : far_) function(value);
  }

 private:
  bool is_near(std::uint64_t block) const { return block - first_ < near_.size(); }  // wraps around below the first

  std::uint64_t first_ = 0;
  std::vector<Value> near_;
  UntrustedMap<Value> far_;
};

}  // namespace arena
