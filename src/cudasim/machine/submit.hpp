// How work gets into a stream: what it touches is checked, it is ordered after what the stream's kind demands, shown to
// the race checker, and queued, or recorded if the stream is being captured.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "cudasim/machine/calls.hpp"
#include "cudasim/machine/machine.hpp"

namespace cudasim {

// Device memory that an operation reads or writes. `device` is the one that does it; a `copy` may reach the plain
// allocations of any device, as copy engines do.
struct Effect {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  bool write = false;
  bool copy = false;
  std::shared_ptr<const ContextState> context{};
  bool by_driver = false;  // bookkeeping, which needs no access
};

struct NodeParams;

struct Piece {
  char* data;
  std::uint64_t size;
  const Store* store = nullptr;  // in which it lies; null for memory of the program
};

struct Work {
  std::string_view name;          // of the API function: lives for ever
  std::function<Result()> run{};  // empty for one that only waits
  std::vector<Effect> effects{};
  std::uint64_t bytes = 0;  // moved or written: small work may run on the calling thread
  std::vector<Mark> after{};
  bool on_worker = false;                              // never on the calling thread
  bool even_failed = false;                            // also after a fault, when nothing else runs any more
  bool delayed = true;                                 // takes time, as every operation in a stream does
  cu::GraphNodeType node = cu::GraphNodeType::kEmpty;  // what it becomes in a graph
  std::shared_ptr<const NodeParams> params{};          // what it is, for those who ask a graph
  // For work without `run`, which is over at once in an idle stream: what to do if it has to wait.
  std::function<Result()> if_queued{};
};

// Whether an address belongs to the driver at all, rather than being pageable memory of the program.
bool is_managed_address(Machine& m, std::uint64_t address);

// The bytes behind an effect. Returns false if one of them is not mapped, not accessible or out of bounds. Without
// `pieces` it is a check for work that is about to be queued, and refuses what was freed in stream order, too.
bool locate(Machine& m, const Effect& effect, std::vector<Piece>* pieces);

// Whether a handle is one of the numbers that stand for a default stream.
bool is_default_stream(cu::Stream handle);

// The stream of a handle: live, or one of the two default ones of the current context. Throws Refusal.
StreamRef stream_of(Call& call, cu::Stream handle);

Mark submit(Call& call, const StreamRef& stream, Work work);

// Waiting for a stream; for the legacy stream this includes the streams that it waits for.
void wait_for_stream(Call& call, const StreamRef& stream);

}  // namespace cudasim
