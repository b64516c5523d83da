// Memory of captured graphs. What is handed out while a stream is being captured belongs to the graph, which will use it
// at every launch, whatever the program does with the block meanwhile. So when such a block is freed it goes back to its
// graph alone, for later requests of the same capture, until the graph's memory is released.
//
//   chunk  a place that was taken from the gaps for a graph. It stays touched and pinned until the release
//   piece  what is free of a chunk, in the order of one stream in one capture: only those may have it again
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/streams/marks.hpp"
#include "core/types.hpp"

namespace arena {

class GraphMemory {
 public:
  struct Chunk {
    Offset offset = 0;
    Bytes size = 0;
  };
  // What a graph runs one after the other. Capture 0: outside of any.
  struct Order {
    StreamIndex stream = 0;
    std::uint64_t capture = 0;
    bool operator==(const Order&) const = default;
  };
  struct Piece {
    Bytes size = 0;
    Order order = {};
    Offset chunk = 0;  // in which it lies
  };

  void add(Chunk chunk) { chunks_.push_back(chunk); }
  // A place in the smallest piece that was freed in this order and is large enough.
  struct Taken {
    Offset offset = 0;
    Offset chunk = 0;
  };
  std::optional<Taken> take(Bytes size, Order order);
  void give(Offset offset, Bytes size, Order order, Offset chunk);

  Bytes free_bytes() const { return free_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  const std::map<Offset, Piece>& pieces() const { return pieces_; }
  void clear();

  // A thread takes memory for this graph no more, or the graph's memory was released.
  void end() { ended_ = true; }
  bool has_ended() const { return ended_; }

 private:
  std::vector<Chunk> chunks_;
  std::map<Offset, Piece> pieces_;
  Bytes free_ = 0;
  std::atomic<bool> ended_ = false;
};

// The graph for which this thread takes memory of an owner; null if there is none. A graph that was entered stays so
// until it has ended.
std::shared_ptr<GraphMemory> current_graph(std::uint64_t owner);
void enter_graph(std::uint64_t owner, std::shared_ptr<GraphMemory> graph);

}  // namespace arena
