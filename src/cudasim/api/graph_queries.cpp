// What can be asked about graphs and their nodes.
#include <cstring>
#include <fstream>

#include "cudasim/api/graphs.hpp"

namespace cudasim {
namespace {

using Nodes = std::vector<cu::GraphNode>;
enum class Listed { kAll, kRoots };
enum class Neighbours { kBefore, kAfter };

// Without room only the number is given. With more room than needed the rest is null.
void give_nodes(const Nodes& found, cu::GraphNode* out, std::size_t* count) {
  require(count != nullptr, kInvalidValue);
  if (out == nullptr) {
    *count = found.size();
    return;
  }
  const std::size_t given = std::min(*count, found.size());
  for (std::size_t i = 0; i < *count; ++i) out[i] = i < given ? found[i] : nullptr;
  *count = given;
}

void clear_edges(cu::GraphEdgeData* edges, std::size_t count) {
  if (edges != nullptr) std::memset(edges, 0, count * sizeof *edges);  // all are of the default kind
}

Result list_nodes(std::string_view name, cu::Graph handle, cu::GraphNode* nodes, std::size_t* count, Listed listed) {
  return enter(name, Need::kDriver, [&](Call& call) {
    Nodes found;
    for (const NodeRef& node : graph_of(call, handle, WhileCaptured::kAllowed)->nodes) {
      if (listed == Listed::kAll || node->dependencies.empty()) found.push_back(node->handle);
    }
    give_nodes(found, nodes, count);
    return kSuccess;
  });
}

Result list_edges(cu::Graph handle, cu::GraphNode* from, cu::GraphNode* to, cu::GraphEdgeData* edges,
                  std::size_t* count) {
  return enter("cuGraphGetEdges", Need::kDriver, [&](Call& call) {
    require(count != nullptr && (from == nullptr) == (to == nullptr), kInvalidValue);
    require(edges == nullptr || from != nullptr, kInvalidValue);
    Nodes before, after;
    for (const NodeRef& node : graph_of(call, handle, WhileCaptured::kAllowed)->nodes) {
      for (const NodeState* dependency : node->dependencies) {
        before.push_back(dependency->handle);
        after.push_back(node->handle);
      }
    }
    std::size_t room = *count;
    clear_edges(edges, room);
    give_nodes(before, from, count);
    give_nodes(after, to, to == nullptr ? count : &room);
    return kSuccess;
  });
}

Result list_neighbours(std::string_view name, cu::GraphNode handle, cu::GraphNode* nodes, cu::GraphEdgeData* edges,
                       std::size_t* count, Neighbours which) {
  return enter(name, Need::kDriver, [&](Call& call) {
    require(count != nullptr && (edges == nullptr || nodes != nullptr), kInvalidValue);
    const NodeRef node = node_of(call, handle);
    Nodes found;
    if (which == Neighbours::kBefore) {
      for (const NodeState* dependency : node->dependencies) found.push_back(dependency->handle);
    } else {
      for (const NodeRef& other : node->graph->nodes) {
        const auto& all = other->dependencies;
        if (std::find(all.begin(), all.end(), node.get()) != all.end()) found.push_back(other->handle);
      }
    }
    clear_edges(edges, *count);
    give_nodes(found, nodes, count);
    return kSuccess;
  });
}

const char* name_of(cu::GraphNodeType type) {
  using enum cu::GraphNodeType;
  switch (type) {
    case kKernel:
      return "KERNEL";
    case kMemcpy:
      return "MEMCPY";
    case kMemset:
      return "MEMSET";
    case kHost:
      return "HOST";
    case kGraph:
      return "GRAPH";
    case kWaitEvent:
      return "EVENT_WAIT";
    case kEventRecord:
      return "EVENT_RECORD";
    case kBatchMemOp:
      return "MEM_OPS";
    case kEmpty:
      return "EMPTY";
  }
  return "UNKNOWN";
}

std::string label_of(const NodeState& node) {
  std::string label = name_of(node.work.node);
  if (const auto* kernel = node.work.params ? std::get_if<KernelParams>(&node.work.params->described) : nullptr) {
    label += "\\n" + kernel->function->info.name;
  }
  return label;
}

void write_dot(std::ostream& out, const GraphState& graph) {
  out << "digraph dot {\n";
  const auto id = [](const NodeState& node) { return hex(reinterpret_cast<std::uint64_t>(node.handle)); };
  for (const NodeRef& node : graph.nodes) {
    out << "  \"" << id(*node) << "\" [shape=\"record\" label=\"" << label_of(*node) << "\"];\n";
    for (const NodeState* before : node->dependencies)
      out << "  \"" << id(*before) << "\" -> \"" << id(*node) << "\";\n";
  }
  out << "}\n";
}

}  // namespace
}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuGraphGetNodes(cu::Graph graph, cu::GraphNode* nodes, std::size_t* count) {
  return list_nodes("cuGraphGetNodes", graph, nodes, count, Listed::kAll);
}

CUDASIM_EXPORT Result cuGraphGetRootNodes(cu::Graph graph, cu::GraphNode* nodes, std::size_t* count) {
  return list_nodes("cuGraphGetRootNodes", graph, nodes, count, Listed::kRoots);
}

CUDASIM_EXPORT Result cuGraphGetEdges(cu::Graph graph, cu::GraphNode* from, cu::GraphNode* to, std::size_t* count) {
  return list_edges(graph, from, to, nullptr, count);
}

CUDASIM_EXPORT Result cuGraphGetEdges_v2(cu::Graph graph, cu::GraphNode* from, cu::GraphNode* to,
                                         cu::GraphEdgeData* edges, std::size_t* count) {
  return list_edges(graph, from, to, edges, count);
}

CUDASIM_EXPORT Result cuGraphNodeGetType(cu::GraphNode handle, cu::GraphNodeType* type) {
  return enter("cuGraphNodeGetType", Need::kDriver, [&](Call& call) {
    require(type != nullptr, kInvalidValue);
    *type = node_of(call, handle)->work.node;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphNodeGetDependencies(cu::GraphNode node, cu::GraphNode* nodes, std::size_t* count) {
  return list_neighbours("cuGraphNodeGetDependencies", node, nodes, nullptr, count, Neighbours::kBefore);
}

CUDASIM_EXPORT Result cuGraphNodeGetDependencies_v2(cu::GraphNode node, cu::GraphNode* nodes, cu::GraphEdgeData* edges,
                                                    std::size_t* count) {
  return list_neighbours("cuGraphNodeGetDependencies", node, nodes, edges, count, Neighbours::kBefore);
}

CUDASIM_EXPORT Result cuGraphNodeGetDependentNodes(cu::GraphNode node, cu::GraphNode* nodes, std::size_t* count) {
  return list_neighbours("cuGraphNodeGetDependentNodes", node, nodes, nullptr, count, Neighbours::kAfter);
}

CUDASIM_EXPORT Result cuGraphNodeGetDependentNodes_v2(cu::GraphNode node, cu::GraphNode* nodes,
                                                      cu::GraphEdgeData* edges, std::size_t* count) {
  return list_neighbours("cuGraphNodeGetDependentNodes", node, nodes, edges, count, Neighbours::kAfter);
}

CUDASIM_EXPORT Result cuGraphDebugDotPrint(cu::Graph graph, const char* path, unsigned) {
  return enter("cuGraphDebugDotPrint", Need::kDriver, [&](Call& call) {
    require(path != nullptr, kInvalidValue);
    const GraphRef found = graph_of(call, graph, WhileCaptured::kAllowed);
    std::ofstream out(path);
    write_dot(out, *found);
    out.close();
    return out.good() ? kSuccess : kOperatingSystem;
  });
}
