// The blocks of an arena, by address: live ones, and those in a stream cache.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/scopes/graphs.hpp"
#include "core/scopes/scopes.hpp"
#include "core/streams/marks.hpp"
#include "core/types.hpp"
#include "driver/device.hpp"

namespace arena {

class StreamCache;

struct alignas(64) Block {
  // Read by every request and every free: one cache line.
  std::uint64_t address = 0;
  Offset offset = 0;
  Bytes size = 0;  // rounded up
  Bytes requested = 0;
  StreamCache* cache = nullptr;  // of its stream
  Block* next = nullptr;         // in its cache's list
  std::uint64_t mark = 0;        // while it is cached: the number of its free in its stream
  StreamIndex stream = 0;
  bool live = false;      // allocated; otherwise cached
  bool cacheable = true;  // not lost or pinned, in no scope or graph, used by no other stream
  bool lost = false;      // its data was lost in a failed re-backing: it is not counted

  std::uint64_t serial = 0;
  std::int64_t born = 0;           // nanoseconds of the steady clock, if its line is known
  cu::Stream cu_stream = nullptr;  // of its stream, which may be gone
  Line line = 0;
  // Only of uncacheable blocks.
  std::uint32_t pins = 0;
  std::vector<StreamIndex> others = {};  // other streams that use it
  std::shared_ptr<Scope> scope = {};
  std::shared_ptr<GraphMemory> graph = {};  // that it goes back to
  Offset chunk = 0;                         // of the graph
  std::uint64_t capture = 0;                // in which it was allocated
};

// A hash table with open addressing. Blocks never move in memory.
class Blocks {
 public:
  Block& add(std::uint64_t address);
  void remove(Block& block);
  Block* find(std::uint64_t address) const;
  std::size_t size() const { return size_; }
  template <typename Visit>
  void each(Visit visit) const {
    for (const Slot& slot : slots_) {
      if (slot.block != nullptr) visit(*slot.block);
    }
  }

 private:
  struct Slot {
    std::uint64_t address = 0;
    Block* block = nullptr;
  };

  std::size_t home(std::uint64_t address) const;
  void put(Slot slot);
  void resize(std::size_t count);

  std::vector<Slot> slots_ = std::vector<Slot>(64);  // a power of two
  std::size_t size_ = 0;
  std::deque<Block> all_;
  std::vector<Block*> unused_;
};

}  // namespace arena
