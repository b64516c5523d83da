// Stream capture: work queued in a captured stream becomes a node of a graph that depends on the stream's earlier nodes.
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
  // A stream in the capture, and how much of its work another one has joined.
  struct Member {
    StreamRef stream;
    std::uint64_t work = 0;
    std::uint64_t joined = 0;
    std::vector<NodeState*> last{};      // what the next node depends on
    std::vector<cu::GraphNode> shown{};  // the same as handles, for cuStreamGetCaptureInfo
    std::vector<cu::GraphEdgeData> edges{};
    bool is_joined() const { return joined >= work; }
  };
  std::uint64_t id = 0;
  cu::CaptureMode mode = cu::CaptureMode::kGlobal;
  std::uint64_t thread = 0;
  StreamRef origin;
  bool invalid = false;
  GraphRef graph;         // during the capture it accepts nodes and queries, but cannot be instantiated or destroyed
  bool own_graph = true;  // destroyed if the capture fails
  std::vector<Member> members;
  std::uint64_t recorded = 0;

  Member* member(const StreamRef& stream);
};

// A point in a captured stream, where an event was recorded.
struct CapturedMark {
  std::shared_ptr<Capture> capture;
  StreamRef stream;
  std::uint64_t work = 0;
  std::vector<NodeState*> nodes{};
};

void record_work(Call& call, const StreamRef& stream, Work work);
CapturedMark mark_capture(const StreamRef& stream);
// The stream waits for the captured work up to the mark, and is part of the capture from now on.
void join_capture(Call& call, const StreamRef& stream, const CapturedMark& mark);

// For a stream that is destroyed: ends the capture that it began, and invalidates one that waits for more of its work.
void drop_capture(Machine& m, const StreamRef& stream);

void invalidate_if_in_progress(const Machine& m, Capture& capture);
// Refuses with `code`, and invalidates the capture, when the stream is being captured.
void refuse_capture(const StreamState& stream, Result code);
// Refuses, and invalidates the captures, when streams of the context are being captured: the call affects all of them.
void check_no_capture(Call& call, const ContextState& context);
// Refuses calls that may wait or change mappings while a capture forbids that for this thread.
void check_safe_in_capture(Call& call);
// Refuses to wait for or query a stream that is being captured.
void check_may_wait(Call& call, const StreamRef& stream);

}  // namespace cudasim
