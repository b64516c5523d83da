// The blocks of an arena, by address: those in users' hands, and those that a front keeps for the next request.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/events.hpp"
#include "core/graphs.hpp"
#include "core/marks.hpp"
#include "core/scopes.hpp"
#include "core/types.hpp"
#include "driver/device.hpp"

namespace arena {

class Front;

struct alignas(64) Block {
  // What every request and every free looks at: one line of the cache.
  std::uint64_t address = 0;
  Offset offset = 0;
  Bytes size = 0;  // rounded
  Bytes requested = 0;
  Front* front = nullptr;  // of its stream
  Block* next = nullptr;   // in its front
  std::uint64_t mark = 0;  // while it is kept: the number of its free in its stream
  StreamIndex stream = 0;
  bool live = false;     // in a user's hands; if not, kept by its front
  bool ordinary = true;  // not lost, not pinned, of no scope or graph, used by no other stream: a front may keep it
  bool lost = false;     // its data, in a re-backing that failed: it counts nowhere any more

  std::uint64_t serial = 0;
  std::int64_t born = 0;        // nanoseconds of the steady clock, if its line is known
  cu::Stream handle = nullptr;  // of its stream, which may be gone
  Line line = 0;
  // Of those that are not ordinary.
  std::uint32_t pins = 0;
  std::vector<StreamIndex> others = {};  // that use it too
  std::shared_ptr<Scope> scope = {};
  std::shared_ptr<GraphMemory> graph = {};  // which it goes back to
  Offset chunk = 0;                         // of the graph, in which it lies
  std::uint64_t capture = 0;                // in which it was handed out
};

// A hash table with open addressing over blocks that stay where they are.
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
