// Memory of captured graphs. Memory allocated while a stream is being captured belongs to the graph, which uses it at
// every launch, even after the program has freed the block. So a freed block goes back to its graph, for later requests
// of the same capture only, until the graph's memory is released.
//
//   chunk  a place taken from the gaps for a graph. It stays touched and pinned until the release
//   piece  a free part of a chunk, freed by one stream in one capture; only the same stream and capture may reuse it
//
// Captures may share memory, if their graphs are launched in the order of their captures and never at the same time. Then a later
// capture takes over the memory of an earlier one, and the same stream may reuse its pieces.
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
  // A graph runs the work of one stream in one capture in order. Capture 0: not in a capture.
  static constexpr std::uint64_t kEarlierCapture = ~std::uint64_t{0};  // one whose memory was taken over
  struct Order {
    StreamIndex stream = 0;
    std::uint64_t capture = 0;
    bool operator==(const Order&) const = default;
    bool precedes(const Order& later) const {
      return *this == later || (stream == later.stream && capture == kEarlierCapture);
    }
  };
  struct Piece {
    Bytes size = 0;
    Order order = {};
    Offset chunk = 0;  // that it is part of
  };

  void add(Chunk chunk) { chunks_.push_back(chunk); }
  // Best fit: a place in the smallest piece of this order that is large enough.
  struct Taken {
    Offset offset = 0;
    Offset chunk = 0;
  };
  std::optional<Taken> take(Bytes size, Order order);
  // The same at one place; none if not all of it is free.
  std::optional<Taken> take_at(Offset offset, Bytes size);
  void give(Offset offset, Bytes size, Order order, Offset chunk);
  // Takes over all chunks and pieces.
  void take_over(GraphMemory& from);

  Bytes free_bytes() const { return free_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  const std::map<Offset, Piece>& pieces() const { return pieces_; }
  void clear();

  // The thread no longer allocates for this graph, or the graph's memory was released.
  void end() { ended_ = true; }
  bool has_ended() const { return ended_; }

 private:
  Taken take_from(std::map<Offset, Piece>::iterator piece, Offset offset, Bytes size);

  std::vector<Chunk> chunks_;
  std::map<Offset, Piece> pieces_;
  Bytes free_ = 0;
  std::atomic<bool> ended_ = false;
};

// The graph that this thread allocates for, by arena (`owner`); null if there is none. An entered graph stays current
// until it ends.
std::shared_ptr<GraphMemory> current_graph(std::uint64_t owner);
void enter_graph(std::uint64_t owner, std::shared_ptr<GraphMemory> graph);

}  // namespace arena
