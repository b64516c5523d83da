// Submits work to a stream: checks what it touches, orders it after the streams that it must wait for, shows it to the
// race checker, and queues it; or records it if the stream is being captured.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "cudasim/machine/calls.hpp"
#include "cudasim/machine/machine.hpp"

namespace cudasim {

// Device memory that an operation in `context` reads or writes. A `copy` can access the plain allocations of any
// device, as copy engines do.
struct Effect {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  bool write = false;
  bool copy = false;
  std::shared_ptr<const ContextState> context{};
  bool by_driver = false;  // bookkeeping of the driver, which needs no access rights
};

struct NodeParams;

struct Piece {
  char* data;
  std::uint64_t size;
  const Store* store = nullptr;  // that it is part of; null for memory of the program
};

struct Work {
  std::string_view name;          // of the API function, a static string
  std::function<Result()> run{};  // empty if it only waits
  std::vector<Effect> effects{};
  std::uint64_t bytes = 0;  // moved or written: small work may run on the calling thread
  std::vector<Mark> after{};
  bool on_worker = false;                              // never on the calling thread
  bool even_failed = false;                            // runs even after a fault of the context
  bool delayed = true;                                 // takes the time of the setting `delay`
  cu::GraphNodeType node = cu::GraphNodeType::kEmpty;  // what it becomes in a graph
  std::shared_ptr<const NodeParams> params{};          // how a graph describes it
  // For work without `run`, which is done at once in an idle stream: what to run if it has to wait.
  std::function<Result()> if_queued{};
  // Changes the marks of known memory when the work is queued, and not when it is recorded. May replace `run`, for a
  // copy that must not deliver what it finds. Called only while values are tracked.
  std::function<void(Call&, Work&)> track{};
};

// Whether an address belongs to the driver, and not to pageable memory of the program.
bool is_managed_address(Machine& m, std::uint64_t address);

// Finds the bytes of an effect. False if one of them is not mapped, not accessible or out of bounds. Without `pieces`
// it is a check for work that is about to be queued, and also rejects memory freed in stream order.
bool locate(Machine& m, const Effect& effect, std::vector<Piece>* pieces);

// Whether a handle stands for a default stream.
bool is_default_stream(cu::Stream handle);

// The live stream of a handle, or a default stream of the current context. Throws Refusal.
StreamRef stream_of(Call& call, cu::Stream handle);

// Calls visit(stream) for the streams that the legacy stream of a context waits for, which wait for it.
template <typename Visit>
void each_with_legacy(const ContextState& context, const Visit& visit) {
  // Not by asking every stream: programs have many, of which few or none are blocking.
  for (const StreamRef& stream : context.blocking) visit(stream);
  for (const auto& [thread, own] : context.per_thread) visit(own.stream);
  for (const StreamRef& stream : context.destroyed) {
    if (stream->blocking()) visit(stream);
  }
}

Mark submit(Call& call, const StreamRef& stream, Work work);

// Makes the call wait for a stream; for the legacy stream, also for the streams that it waits for.
void wait_for_stream(Call& call, const StreamRef& stream);

}  // namespace cudasim
