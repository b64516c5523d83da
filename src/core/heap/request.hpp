// What a request asks for: Lookup is known without the arena's lock, Request with it.
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

struct Lookup {
  Bytes size = 0;
  Bytes rounded = 0;
  StreamKey stream = {};
  StreamCache* cache = nullptr;  // of the stream, as a hint; null if there is none
  Line line = 0;
  bool may_be_cached = false;                 // the cache may have a block of this size
  std::optional<std::uint64_t> capture = {};  // that the stream is in
};

struct Request {
  Bytes size = 0;
  Bytes rounded = 0;
  StreamIndex stream = 0;
  StreamCache* cache = nullptr;
  std::shared_ptr<Scope> scope = {};
  std::shared_ptr<GraphMemory> graph = {};  // that it allocates for
  Line line = 0;
  Moving moving = Moving::kForbidden;
  bool may_be_cached = false;
  std::optional<std::uint64_t> capture = {};
  bool is_last = true;                            // the caller does not try again if this fails
  bool any_stream = false;                        // the streams that will use the memory are not known
  const QuiescenceCheck* is_quiescent = nullptr;  // null: no need to check
  mutable bool has_asked_device = false;          // how much it has left

  // The stream that the memory must be ready for. A graph may be launched in any stream.
  StreamIndex user() const { return capture || any_stream ? Streams::kNoStream : stream; }
};

}  // namespace arena
