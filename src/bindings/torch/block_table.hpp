// The blocks that PyTorch has, by address: it frees by address alone, from any thread. Null is never in the table.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "base/address_map.hpp"
#include "bindings/pool_state.hpp"
#include "core/locks.hpp"
#include "core/process.hpp"

namespace arena::torch {

struct Entry {
  PoolState* pool = nullptr;
  Block* block = nullptr;
};

class BlockTable {
 public:
  // In a forked child a shard may stay locked for ever, and the blocks are the parent's.
  bool is_inherited() const { return forks_at_creation_ != forks(); }
  void add(void* address, Entry entry) {
    Locked& shard = shard_of(address);
    const std::lock_guard lock(shard.mutex);
    shard.blocks.add(number(address), entry);
  }
  std::optional<Entry> find(void* address) {
    Locked& shard = shard_of(address);
    const std::lock_guard lock(shard.mutex);
    const Entry* found = shard.blocks.find(number(address));
    return found != nullptr ? std::optional(*found) : std::nullopt;
  }
  std::optional<Entry> take(void* address) {
    Locked& shard = shard_of(address);
    const std::lock_guard lock(shard.mutex);
    return shard.blocks.take(number(address));
  }

 private:
  static constexpr std::size_t kShards = 16;  // threads seldom meet in one
  struct alignas(64) Locked {
    SpinLock mutex;
    AddressMap<Entry> blocks;
  };
  static std::uintptr_t number(void* address) { return reinterpret_cast<std::uintptr_t>(address); }
  Locked& shard_of(void* address) { return shards_[(number(address) >> 9) % kShards]; }

  std::array<Locked, kShards> shards_;
  std::uint32_t forks_at_creation_ = forks();
};

}  // namespace arena::torch
