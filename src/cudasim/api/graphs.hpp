// Graphs: nodes of work with dependencies, captured from streams or built by hand, and executable graphs.
#pragma once

#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "cudasim/api/launches.hpp"
#include "cudasim/api/user_objects.hpp"
#include "cudasim/machine/machine.hpp"
#include "cudasim/machine/submit.hpp"

namespace cudasim {

// What a kernel node launches, with its arguments as they were when it was made.
struct KernelParams {
  std::shared_ptr<FunctionState> function;
  cu::KernelNodeParams given{};
  Arguments arguments;
  std::vector<void*> pointers;  // to each argument, for cuGraphKernelNodeGetParams
};

// The event that a node records or waits for.
struct EventParams {
  std::shared_ptr<EventState> event;
};

// What a node does, as the program described it.
struct NodeParams {
  std::variant<std::monostate, KernelParams, cu::Memcpy3D, cu::MemsetNodeParams, cu::HostNodeParams, EventParams>
      described;
};
std::shared_ptr<const NodeParams> kernel_params(const std::shared_ptr<FunctionState>& function, const Launch& launch,
                                                Arguments arguments);

struct GraphState;

struct NodeState {
  cu::GraphNode handle = nullptr;
  GraphState* graph = nullptr;
  Work work;
  std::vector<NodeState*> dependencies;
  std::shared_ptr<GraphState> child;  // of a node that is a graph
  cu::GraphNode original = nullptr;   // that it is a clone of
};
using NodeRef = std::shared_ptr<NodeState>;

struct GraphState {
  cu::Graph handle = nullptr;
  std::vector<NodeRef> nodes;  // in the order in which they were added
  UserRefs users;
};
using GraphRef = std::shared_ptr<GraphState>;

// An executable graph: work in an order that the dependencies allow. Independent of the graph it was made from.
struct ExecState {
  // A node as an update compares it.
  struct Shape {
    cu::GraphNodeType type;
    std::vector<std::size_t> dependencies;  // by their place
    const ContextState* context;            // of a kernel
    std::vector<Shape> child;               // of a node that is a graph
  };
  std::vector<Work> work;
  std::vector<Shape> shape;
  std::uint64_t flags = 0;
  std::shared_ptr<UserRefs> users;
  Mark launched;  // where its last launch ends
  Clock clock;
};

// Whether a call takes a graph that a capture is adding to.
enum class WhileCaptured { kRefused, kAllowed };
// The graph of a handle. Throws Refusal.
GraphRef graph_of(Call& call, cu::Graph handle, WhileCaptured while_captured = WhileCaptured::kRefused);
NodeRef node_of(Call& call, cu::GraphNode handle);

// A new node at the end of the graph.
NodeState& add_node(Machine& m, GraphState& graph, Work work, std::vector<NodeState*> dependencies);
// The nodes of handles, which must be of that graph and all different. Throws Refusal.
std::vector<NodeState*> dependencies_of(Call& call, const GraphState& graph, const cu::GraphNode* nodes,
                                        std::size_t count);
// Only the default kind of edge exists here. Throws Refusal.
void check_edges(const cu::GraphEdgeData* edges, std::size_t count);

// All that the graph does, in an order that its dependencies allow. Throws Refusal for a cycle.
std::vector<Work> ordered_work(const GraphState& graph);
// Forgets a graph and its nodes.
void destroy_graph(Machine& m, const GraphRef& graph, const Death& death);
GraphRef copy_graph(Machine& m, const GraphState& graph);

}  // namespace cudasim
