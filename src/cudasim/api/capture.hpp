// Stream capture: work queued in a captured stream becomes nodes of a graph, each after what its stream holds so far.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "cudasim/api/graphs.hpp"
#include "cudasim/machine/calls.hpp"
#include "cudasim/machine/machine.hpp"
#include "cudasim/machine/submit.hpp"

namespace cudasim {

struct Capture {
  // A stream that takes part, and what of it has been joined by another that does.
  struct Member {
    StreamRef stream;
    std::uint64_t work = 0;
    std::uint64_t joined = 0;
    std::vector<NodeState*> last{};      // what the next node comes after
    std::vector<cu::GraphNode> shown{};  // the same, for those who ask
    std::vector<cu::GraphEdgeData> edges{};
  };
  std::uint64_t id = 0;
  cu::CaptureMode mode = cu::CaptureMode::kGlobal;
  std::uint64_t thread = 0;
  StreamRef origin;
  bool invalid = false;
  GraphRef graph;         // can be added to, and asked about, but not be launched or destroyed while the capture lasts
  bool own_graph = true;  // goes if the capture fails
  std::vector<Member> members;
  std::uint64_t recorded = 0;

  Member* member(const StreamRef& stream);
};

// What an event remembers when it was recorded in a captured stream.
struct CapturedMark {
  std::shared_ptr<Capture> capture;
  StreamRef stream;
  std::uint64_t work = 0;
  std::vector<NodeState*> nodes{};
};

void record_work(Call& call, const StreamRef& stream, Work work);
CapturedMark mark_capture(const StreamRef& stream);
// The stream waits for what was captured up to the mark, and takes part in the capture from now on.
void join_capture(Call& call, const StreamRef& stream, const CapturedMark& mark);

// Ends the capture that a stream began, and invalidates one that it only takes part in: the stream goes.
void drop_capture(Machine& m, const StreamRef& stream);

// Invalidates a capture that has not ended.
void invalidate_if_under_way(const Machine& m, Capture& capture);
// Refuses with `code`, and invalidates the capture, when the stream is being captured.
void refuse_capture(const StreamState& stream, Result code);
// Refuses, and invalidates the captures, when streams of the context are being captured: the call concerns them all.
void check_no_capture(Call& call, const ContextState& context);
// Refuses calls that may wait or change mappings while a capture forbids them to this thread.
void check_safe_in_capture(Call& call);
// Refuses to wait for or ask about a stream that is being captured.
void check_may_wait(Call& call, const StreamRef& stream);

}  // namespace cudasim
