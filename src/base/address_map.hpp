// A map from addresses, which are multiples of 256 and not 0. Open addressing: where every request adds an entry and every free
// takes one, the nodes of a standard map would take longer than the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace arena {

template <typename Value>
class AddressMap {
 public:
  void add(std::uintptr_t address, Value value) {  // in the place of an entry that has this address
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[position(address)];
    size_ += slot.address == 0 ? 1 : 0;
    slot = {address, value};
  }
  const Value* find(std::uintptr_t address) const {
    const Slot& slot = slots_[position(address)];
    return slot.address != 0 ? &slot.value : nullptr;
  }
  std::optional<Value> take(std::uintptr_t address) {
    std::size_t hole = position(address);
    if (slots_[hole].address == 0) return std::nullopt;
    const Value value = slots_[hole].value;
    // Entries behind the hole move into it if it lies between their home and their place.
    for (std::size_t at = next(hole); slots_[at].address != 0; at = next(at)) {
      if (distance(home(slots_[at].address), at) < distance(hole, at)) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = {};
    --size_;
    return value;
  }

 private:
  struct Slot {
    std::uintptr_t address = 0;  // 0 if it is empty
    Value value = {};
  };
  std::size_t next(std::size_t at) const { return (at + 1) & (slots_.size() - 1); }
  std::size_t distance(std::size_t from, std::size_t to) const { return (to - from) & (slots_.size() - 1); }
  std::size_t home(std::uintptr_t address) const {
    return static_cast<std::size_t>((address >> 9) * 0x9E3779B97F4A7C15u >> 32) & (slots_.size() - 1);
  }
  std::size_t position(std::uintptr_t address) const {  // of its slot, or of the empty one where it would be
    std::size_t at = home(address);
    while (slots_[at].address != address && slots_[at].address != 0) at = next(at);
    return at;
  }
  [[gnu::noinline]] void grow() {
    const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
    for (const Slot& slot : old) {
      if (slot.address != 0) slots_[position(slot.address)] = slot;
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(64);  // a power of two
  std::size_t size_ = 0;
};

}  // namespace arena
