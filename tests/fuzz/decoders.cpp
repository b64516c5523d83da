// The compiled parts of the file readers: decodes a chunk of a trace, encodes it again and replays it; and checks the
// input as a pickle. Only TraceError may be thrown.
#include <optional>
#include <vector>

#include "native/sim.hpp"
#include "trace/failures.hpp"
#include "trace/pickles.hpp"
#include "trace/replay.hpp"
#include "trace/trace.hpp"

namespace arena {
namespace {

constexpr std::uint64_t kMostEvents = 2'000;  // that are replayed

std::shared_ptr<Trace> decode(const std::uint8_t* data, std::size_t size) {
  auto trace = std::make_shared<Trace>();
  try {
    trace->add_chunk(size > 0 ? data[0] : 0, 0, data, size);
    trace->add_chunk(0, 0, data, size / 2);  // reuses block numbers
  } catch (const TraceError&) {
  }
  CHECK(trace->events().size() <= 2 * size);
  return trace;
}

void encode_again(const Trace& trace) {
  Encoder encoder;
  Trace again;
  while (encoder.events() < trace.events().size()) {
    const Chunk chunk = trace.encode(encoder, encoder.events());
    CHECK(chunk.events > 0);
    again.add_chunk(chunk.next_block, chunk.time, chunk.bytes.data(), chunk.bytes.size());
  }
  CHECK(again.events().size() == trace.events().size());
}

void replay(const test::Sim& sim, const std::shared_ptr<Trace>& trace, std::optional<std::uint64_t> ended_by = {}) {
  const std::shared_ptr<Arena> arena = sim.arena(Bytes{128} << 20);
  {
    Replay run(trace, arena, 7, {}, Moving::kAllowed, ended_by);
    while (run.step(100) && run.done() < kMostEvents) {
    }
    std::vector<std::uint64_t> live;
    for (const auto& piece : arena->snapshot().pieces) {
      if (piece.state == Snapshot::State::kLive) live.push_back(piece.address);
    }
    CHECK(run.origins(live).size() == live.size());
  }
  arena->validate();
  CHECK(arena->stats().live == 0);
}

// As if one of the failed requests had ended the run.
void replay_to_failure(const test::Sim& sim, const std::shared_ptr<Trace>& trace) {
  const std::vector<FailedRequest> failed = find_failures(*trace);
  if (!failed.empty()) replay(sim, trace, failed[failed.size() / 2].event);
}

}  // namespace
}  // namespace arena

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const arena::test::Sim& sim = *new arena::test::Sim;
  const auto trace = arena::decode(data, size);
  arena::encode_again(*trace);
  arena::replay(sim, trace);
  arena::replay_to_failure(sim, trace);
  sim.check_all_returned();
  try {
    arena::check_pickle(data, size);
  } catch (const arena::TraceError&) {
  }
  return 0;
}
