#include "core/blocks/blocks.hpp"

#include <utility>

namespace arena {
namespace {

constexpr std::size_t kFewSlots = 64;

}  // namespace

// Fibonacci hashing: addresses are multiples of large powers of two, so the high bits of the product are used.
std::size_t Blocks::home(std::uint64_t address) const {
  return static_cast<std::size_t>((address >> 8) * 0x9E3779B97F4A7C15u >> 20) & (slots_.size() - 1);
}

Block* Blocks::find(std::uint64_t address) const {
  for (std::size_t i = home(address); slots_[i].block != nullptr; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].address == address) return slots_[i].block;
  }
  return nullptr;
}

void Blocks::put(Slot slot) {
  std::size_t i = home(slot.address);
  while (slots_[i].block != nullptr) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = slot;
}

void Blocks::resize(std::size_t count) {
  const std::vector<Slot> before = std::exchange(slots_, std::vector<Slot>(count));
  for (const Slot& slot : before) {
    if (slot.block != nullptr) put(slot);
  }
}

Block& Blocks::add(std::uint64_t address) {
  if (4 * (size_ + 1) > slots_.size()) resize(2 * slots_.size());
  if (unused_.empty()) {
    unused_.reserve(all_.size() + 1);  // so that remove() needs no memory
    unused_.push_back(&all_.emplace_back());
  }
  Block& block = *unused_.back();
  unused_.pop_back();
  block.address = address;
  put({address, &block});
  ++size_;
  return block;
}

// Linear probing without tombstones: later entries of the probe sequence move up into the hole where they may.
void Blocks::remove(Block& block) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t hole = home(block.address);
  while (slots_[hole].block != &block) hole = (hole + 1) & mask;
  for (std::size_t i = (hole + 1) & mask; slots_[i].block != nullptr; i = (i + 1) & mask) {
    if (((i - home(slots_[i].address)) & mask) < ((i - hole) & mask)) continue;
    slots_[hole] = slots_[i];
    hole = i;
  }
  slots_[hole] = {};
  --size_;
  if (!block.cacheable) block = {};  // new_block() and start() overwrite all that matters in the others
  unused_.push_back(&block);
  if (slots_.size() > kFewSlots && 32 * size_ < slots_.size()) resize(slots_.size() / 4);
}

}  // namespace arena
