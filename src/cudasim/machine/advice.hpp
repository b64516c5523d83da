// What a program said about parts of a range of managed memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <set>

#include "abi/types.hpp"

namespace cudasim {

struct Advice {
  bool read_mostly = false;
  arena::cu::MemLocation preferred{}, prefetched{};  // of no type if there is none
  std::set<int> accessed_by;                         // devices; -1 is the host
};

// Advice by place: each entry holds from its key up to the next one. Empty: nothing was said.
class AdviceMap {
 public:
  void change(std::uint64_t begin, std::uint64_t end, std::uint64_t size, const std::function<void(Advice&)>& apply) {
    split(begin);
    if (end < size) split(end);
    for (auto it = parts_.find(begin); it != parts_.end() && it->first < end; ++it) apply(it->second);
  }

  // What holds for all of [begin, end).
  Advice common(std::uint64_t begin, std::uint64_t end) const {
    auto it = parts_.upper_bound(begin);
    if (it == parts_.begin()) return {};
    Advice found = (--it)->second;
    for (++it; it != parts_.end() && it->first < end; ++it) {
      const Advice& other = it->second;
      found.read_mostly = found.read_mostly && other.read_mostly;
      if (!same(found.preferred, other.preferred)) found.preferred = {};
      if (!same(found.prefetched, other.prefetched)) found.prefetched = {};
      std::erase_if(found.accessed_by, [&](int device) { return !other.accessed_by.contains(device); });
    }
    return found;
  }

 private:
  static bool same(const arena::cu::MemLocation& one, const arena::cu::MemLocation& other) {
    return one.type == other.type && one.id == other.id;
  }
  void split(std::uint64_t at) {
    if (parts_.empty()) parts_.emplace(0, Advice{});
    const auto it = std::prev(parts_.upper_bound(at));
    if (it->first != at) parts_.emplace(at, it->second);
  }

  std::map<std::uint64_t, Advice> parts_;
};

}  // namespace cudasim
