// What is asked for, and what the arena finds out about it.
//
//   Request      what a caller asks for; nothing in it changes while it is served
//   Lookup       what is known of it without the arena's lock: enough for a hit in a cache
//   HeapRequest  both, and what is known with the lock; the heap and the ladder work on it
//
// Backing's Demand and Gaps' Place are other ideas, and know nothing of requests: a Demand is one attempt to find physical
// memory (the ladder makes a new one in every round), and a Place is where a gap can be taken.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "core/blocks/stream_cache.hpp"
#include "core/scopes/graphs.hpp"
#include "core/scopes/scopes.hpp"
#include "core/types.hpp"

namespace arena {

// Whether the device is still idle and no thread gives it work. Called with the arena's lock held, right before live
// data is moved.
using QuiescenceCheck = std::function<bool()>;

struct Request {
  Bytes size = 0;
  cu::Stream stream = nullptr;  // must live until the call returns; not used afterwards, unless it is kept
  Line line = 0;
  // Allow it only if no thread gives the device work during the call.
  Moving moving = Moving::kForbidden;
  bool is_last = true;  // if the request fails, it counts as a failure: the caller does not try again
  // The caller does not know which streams will use the memory. No work of any stream is pending on it when it is given
  // out, and after the free it is not reused before all streams have done the work that they had then.
  bool any_stream = false;
  // Called right before live data is moved; null: no need to check.
  const QuiescenceCheck* is_quiescent = nullptr;
};

struct Lookup {
  Bytes rounded = 0;  // the size of the block
  StreamKey key = {};
  StreamCache* cache = nullptr;               // of the stream, as a hint; null if there is none
  StreamCache::Bin* bin = nullptr;            // of the cache, which may have a block of this size; null if it has none
  std::optional<std::uint64_t> capture = {};  // that the stream is in
};

struct HeapRequest : Request, Lookup {
  StreamIndex index = 0;  // of the stream
  std::shared_ptr<Scope> scope = {};
  std::shared_ptr<GraphMemory> graph = {};  // that it allocates for
  mutable bool has_asked_device = false;    // how much it has left

  // The stream that the memory must be ready for. A graph may be launched in any stream.
  StreamIndex user() const { return capture || any_stream ? Streams::kNoStream : index; }
};

}  // namespace arena
