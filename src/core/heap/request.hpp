// What a request asks for: as far as it is known without the arena's lock, and all of it.
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

// Whether the device is still idle and no thread gives it work. Called with the arena's lock held, right before live data
// is moved.
using QuiescenceCheck = std::function<bool()>;

// Known without the lock.
struct Lookup {
  Bytes size = 0;
  Bytes rounded = 0;
  StreamKey stream = {};
  StreamCache* cache = nullptr;  // of the stream, most likely; null if there is none
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
  std::shared_ptr<GraphMemory> graph = {};  // that the memory is for
  Line line = 0;
  Moving moving = Moving::kForbidden;
  bool may_be_cached = false;
  std::optional<std::uint64_t> capture = {};
  bool is_last = true;                            // the caller does not try again if it fails
  const QuiescenceCheck* is_quiescent = nullptr;  // null: no need to check
  mutable bool has_asked = false;                 // the device how much it has left: once is enough

  // Whom the memory must be ready for: a graph may be launched in any stream.
  StreamIndex user() const { return capture ? Streams::kNoStream : stream; }
};

}  // namespace arena
