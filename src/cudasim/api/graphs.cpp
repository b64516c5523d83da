#include "cudasim/api/graphs.hpp"

#include <algorithm>
#include <map>

#include "cudasim/api/capture.hpp"
#include "cudasim/api/contexts.hpp"
#include "cudasim/api/copies.hpp"
#include "cudasim/api/events.hpp"
#include "cudasim/api/tracking.hpp"

namespace cudasim {
namespace {

using MakeWork = std::function<Work(Call&)>;
enum class Change { kAdd, kRemove };

Result build_node(std::string_view name, cu::GraphNode* out, cu::Graph handle, const cu::GraphNode* dependencies,
                  std::size_t count, const MakeWork& make) {
  return enter(name, Need::kDriver, [&](Call& call) {
    require(out != nullptr, kInvalidValue);
    const GraphRef graph = graph_of(call, handle, WhileCaptured::kAllowed);
    auto before = dependencies_of(call, *graph, dependencies, count);
    *out = add_node(call.machine, *graph, make(call), std::move(before)).handle;
    return kSuccess;
  });
}

template <typename Described>
std::shared_ptr<const NodeParams> described_as(const Described& described) {
  return std::make_shared<const NodeParams>(NodeParams{described});
}

Work kernel_work(Call& call, const cu::KernelNodeParams* params) {
  require(params != nullptr && (params->function != nullptr || params->kernel != nullptr), kInvalidValue);
  const auto handle = params->function != nullptr ? params->function : reinterpret_cast<cu::Function>(params->kernel);
  const ContextRef context =
      params->context != nullptr || call.context ? context_of(call, params->context) : ContextRef{};
  const FunctionState& found = function_of(call, handle, context);
  const auto function = call.machine.functions.find(found.handle);
  const Launch launch{.function = found.handle,
                      .grid = {params->grid_x, params->grid_y, params->grid_z},
                      .block = {params->block_x, params->block_y, params->block_z},
                      .shared = params->shared_bytes,
                      .params = params->params,
                      .extra = params->extra};
  check_launch(call.machine, *function, launch);
  Work work = launch_work("cuGraphLaunch", *function);
  work.params = kernel_params(function, launch, copy_arguments(*function, launch));
  work.track = track_kernel_node;
  return work;
}

void copy_nodes(Machine& m, const GraphState& from, GraphState& to) {
  std::map<const NodeState*, NodeState*> copies;
  for (const NodeRef& node : from.nodes) {
    NodeState& copy = add_node(m, to, node->work, {});
    copy.original = node->handle;
    if (node->child) copy.child = copy_graph(m, *node->child);
    copies[node.get()] = &copy;
  }
  for (const NodeRef& node : from.nodes) {
    for (const NodeState* before : node->dependencies) {
      copies.at(node.get())->dependencies.push_back(copies.at(before));
    }
  }
}

void append_in_order(const GraphState& graph, std::vector<Work>& out) {
  std::vector<const NodeState*> waiting;
  std::set<const NodeState*> done;
  for (const NodeRef& node : graph.nodes) waiting.push_back(node.get());
  while (!waiting.empty()) {
    const auto is_ready = [&](const NodeState* node) {
      return std::all_of(node->dependencies.begin(), node->dependencies.end(),
                         [&](const NodeState* before) { return done.contains(before); });
    };
    const std::size_t left = waiting.size();
    std::vector<const NodeState*> later;
    for (const NodeState* node : waiting) {  // in the order of their making, which is the right one mostly
      if (!is_ready(node)) {
        later.push_back(node);
        continue;
      }
      done.insert(node);
      if (node->child) {
        append_in_order(*node->child, out);
      } else {
        out.push_back(node->work);
      }
    }
    require(later.size() < left, kInvalidValue);  // a cycle
    waiting = std::move(later);
  }
}

void remove_dependency(NodeState& node, const NodeState* before) {
  const auto it = std::find(node.dependencies.begin(), node.dependencies.end(), before);
  require(it != node.dependencies.end(), kInvalidValue);
  node.dependencies.erase(it);
}

Result change_dependencies(std::string_view name, cu::Graph handle, const cu::GraphNode* from, const cu::GraphNode* to,
                           const cu::GraphEdgeData* edges, std::size_t count, Change change) {
  return enter(name, Need::kDriver, [&](Call& call) {
    const GraphRef graph = graph_of(call, handle, WhileCaptured::kAllowed);
    require(count == 0 || (from != nullptr && to != nullptr), kInvalidValue);
    check_edges(edges, count);
    for (std::size_t i = 0; i < count; ++i) {
      NodeState* before = node_of(call, from[i]).get();
      NodeState* after = node_of(call, to[i]).get();
      require(before->graph == graph.get() && after->graph == graph.get() && before != after, kInvalidValue);
      const auto& known = after->dependencies;
      if (change == Change::kRemove) {
        remove_dependency(*after, before);
        continue;
      }
      require(std::find(known.begin(), known.end(), before) == known.end(), kInvalidValue);
      after->dependencies.push_back(before);
    }
    return kSuccess;
  });
}

template <typename Described>
Result describe_node(std::string_view name, cu::GraphNode handle, Described* out) {
  return enter(name, Need::kDriver, [&](Call& call) {
    require(out != nullptr, kInvalidValue);
    const NodeRef node = node_of(call, handle);
    const auto* described = node->work.params ? std::get_if<Described>(&node->work.params->described) : nullptr;
    require(described != nullptr, kInvalidValue);
    *out = *described;
    return kSuccess;
  });
}

}  // namespace

std::shared_ptr<const NodeParams> kernel_params(const std::shared_ptr<FunctionState>& function, const Launch& launch,
                                                Arguments arguments) {
  KernelParams made{.function = function, .given = {}, .arguments = std::move(arguments), .pointers = {}};
  made.given = {.function = function->handle,
                .grid_x = launch.grid[0],
                .grid_y = launch.grid[1],
                .grid_z = launch.grid[2],
                .block_x = launch.block[0],
                .block_y = launch.block[1],
                .block_z = launch.block[2],
                .shared_bytes = launch.shared,
                .params = nullptr,
                .extra = nullptr,
                .kernel = function->kernel ? function->kernel->handle : nullptr,
                .context = function->module->context->handle};
  auto params = std::make_shared<NodeParams>(NodeParams{std::move(made)});
  auto& kept = std::get<KernelParams>(params->described);  // where it stays: the pointers are into it
  if (kept.arguments && function->info.params) {
    for (const KernelParam& param : *function->info.params) {
      kept.pointers.push_back(kept.arguments->data() + param.offset);
    }
    kept.given.params = kept.pointers.data();
  }
  return params;
}

GraphRef graph_of(Call& call, cu::Graph handle, WhileCaptured while_captured) {
  GraphRef graph = find_live(call, call.machine.graphs, handle);
  require(graph != nullptr, kInvalidValue);
  for (const auto& [id, capture] : call.machine.captures) {
    require(while_captured == WhileCaptured::kAllowed || capture->graph != graph, kInvalidValue);
  }
  return graph;
}

NodeRef node_of(Call& call, cu::GraphNode handle) {
  NodeRef node = find_live(call, call.machine.graph_nodes, handle);
  require(node != nullptr, kInvalidValue);
  return node;
}

NodeState& add_node(Machine& m, GraphState& graph, Work work, std::vector<NodeState*> dependencies) {
  auto node = std::make_shared<NodeState>();
  node->handle = m.graph_nodes.reserve(m.settings.reuse);
  node->graph = &graph;
  node->work = std::move(work);
  node->dependencies = std::move(dependencies);
  m.graph_nodes.add(node->handle, node);
  graph.nodes.push_back(node);
  return *node;
}

std::vector<NodeState*> dependencies_of(Call& call, const GraphState& graph, const cu::GraphNode* nodes,
                                        std::size_t count) {
  require(count == 0 || nodes != nullptr, kInvalidValue);
  std::vector<NodeState*> found;
  for (std::size_t i = 0; i < count; ++i) {
    NodeState* node = node_of(call, nodes[i]).get();
    require(node->graph == &graph && std::find(found.begin(), found.end(), node) == found.end(), kInvalidValue);
    found.push_back(node);
  }
  return found;
}

void check_edges(const cu::GraphEdgeData* edges, std::size_t count) {
  for (std::size_t i = 0; edges != nullptr && i < count; ++i) {
    require(edges[i].from_port == 0 && edges[i].to_port == 0 && edges[i].type == 0, kNotSupported);
  }
}

std::vector<Work> ordered_work(const GraphState& graph) {
  std::vector<Work> work;
  append_in_order(graph, work);
  return work;
}

void destroy_graph(Machine& m, const GraphRef& graph, const Death& death) {
  for (const NodeRef& node : graph->nodes) {
    if (node->child) destroy_graph(m, node->child, death);
    m.graph_nodes.erase(node->handle, death);
  }
  m.graphs.erase(graph->handle, death);
}

GraphRef copy_graph(Machine& m, const GraphState& graph) {
  auto copy = std::shared_ptr<GraphState>(new GraphState{.handle = nullptr, .nodes = {}, .users = graph.users});
  copy->handle = m.graphs.reserve(m.settings.reuse);
  m.graphs.add(copy->handle, copy);
  copy_nodes(m, graph, *copy);
  return copy;
}

}  // namespace cudasim

using namespace cudasim;
using cu::Graph;
using cu::GraphNode;

CUDASIM_EXPORT Result cuGraphCreate(Graph* graph, unsigned flags) {
  return enter("cuGraphCreate", Need::kDriver, [&](Call& call) {
    require(graph != nullptr && flags == 0, kInvalidValue);
    auto made = std::make_shared<GraphState>();
    made->handle = call.machine.graphs.reserve(call.machine.settings.reuse);
    call.machine.graphs.add(made->handle, made);
    *graph = made->handle;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphDestroy(Graph handle) {
  return enter("cuGraphDestroy", Need::kDriver, [&](Call& call) {
    destroy_graph(call.machine, graph_of(call, handle), death_by(call));
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphClone(Graph* clone, Graph original) {
  return enter("cuGraphClone", Need::kDriver, [&](Call& call) {
    require(clone != nullptr, kInvalidValue);
    *clone = copy_graph(call.machine, *graph_of(call, original))->handle;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphNodeFindInClone(GraphNode* node, GraphNode original, Graph clone) {
  return enter("cuGraphNodeFindInClone", Need::kDriver, [&](Call& call) {
    require(node != nullptr, kInvalidValue);
    const GraphRef graph = graph_of(call, clone, WhileCaptured::kAllowed);
    for (const NodeRef& one : graph->nodes) {
      if (one->original != original || original == nullptr) continue;
      *node = one->handle;
      return kSuccess;
    }
    return kInvalidValue;
  });
}

CUDASIM_EXPORT Result cuGraphAddEmptyNode(GraphNode* node, Graph graph, const GraphNode* dependencies,
                                          std::size_t count) {
  return build_node("cuGraphAddEmptyNode", node, graph, dependencies, count,
                    [](Call&) { return Work{.name = "cuGraphLaunch"}; });
}

CUDASIM_EXPORT Result cuGraphAddKernelNode_v2(GraphNode* node, Graph graph, const GraphNode* dependencies,
                                              std::size_t count, const cu::KernelNodeParams* params) {
  return build_node("cuGraphAddKernelNode", node, graph, dependencies, count,
                    [&](Call& call) { return kernel_work(call, params); });
}

CUDASIM_EXPORT Result cuGraphAddMemcpyNode(GraphNode* node, Graph graph, const GraphNode* dependencies,
                                           std::size_t count, const cu::Memcpy3D* params, cu::Context context) {
  return build_node("cuGraphAddMemcpyNode", node, graph, dependencies, count, [&](Call& call) {
    require(params != nullptr, kInvalidValue);
    const Copy copy = described_copy(call, *params);
    Work work = copy_work("cuGraphLaunch", copy, context_of(call, context));
    work.track = copy_tracker(copy, context_of(call, context), Origin::kGraph);
    work.params = described_as(*params);
    return work;
  });
}

CUDASIM_EXPORT Result cuGraphAddMemsetNode(GraphNode* node, Graph graph, const GraphNode* dependencies,
                                           std::size_t count, const cu::MemsetNodeParams* params, cu::Context context) {
  return build_node("cuGraphAddMemsetNode", node, graph, dependencies, count, [&](Call& call) {
    require(params != nullptr, kInvalidValue);
    require(params->element == 1 || params->element == 2 || params->element == 4, kInvalidValue);
    require(params->width > 0 && params->height > 0 && params->width <= SIZE_MAX / params->element, kInvalidValue);
    const Fill fill{.address = params->dst,
                    .pitch = params->pitch,
                    .row = params->width * params->element,
                    .rows = params->height,
                    .value = params->value,
                    .unit = params->element};
    check_fill(fill);
    Work work = fill_work("cuGraphLaunch", fill, context_of(call, context));
    work.track = fill_tracker(fill);
    work.params = described_as(*params);
    return work;
  });
}

CUDASIM_EXPORT Result cuGraphAddHostNode(GraphNode* node, Graph graph, const GraphNode* dependencies, std::size_t count,
                                         const cu::HostNodeParams* params) {
  return build_node("cuGraphAddHostNode", node, graph, dependencies, count, [&](Call&) {
    require(params != nullptr && params->function != nullptr, kInvalidValue);
    Work work = host_work("cuGraphLaunch", [given = *params] { given.function(given.data); }, {});
    work.params = described_as(*params);
    return work;
  });
}

CUDASIM_EXPORT Result cuGraphAddChildGraphNode(GraphNode* out, Graph handle, const GraphNode* dependencies,
                                               std::size_t count, Graph child) {
  return enter("cuGraphAddChildGraphNode", Need::kDriver, [&](Call& call) {
    require(out != nullptr && child != handle, kInvalidValue);
    const GraphRef graph = graph_of(call, handle, WhileCaptured::kAllowed);
    const GraphRef inner = graph_of(call, child);
    auto before = dependencies_of(call, *graph, dependencies, count);
    NodeState& node =
        add_node(call.machine, *graph, {.name = "cuGraphLaunch", .node = cu::GraphNodeType::kGraph}, std::move(before));
    node.child = copy_graph(call.machine, *inner);  // later changes of it do not count
    *out = node.handle;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphDestroyNode(GraphNode handle) {
  return enter("cuGraphDestroyNode", Need::kDriver, [&](Call& call) {
    const NodeRef node = node_of(call, handle);
    GraphState& graph = *graph_of(call, node->graph->handle);
    for (const NodeRef& other : graph.nodes) std::erase(other->dependencies, node.get());
    std::erase(graph.nodes, node);
    if (node->child) destroy_graph(call.machine, node->child, death_by(call));
    call.machine.graph_nodes.erase(handle, death_by(call));
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphAddDependencies(Graph graph, const GraphNode* from, const GraphNode* to,
                                             std::size_t count) {
  return change_dependencies("cuGraphAddDependencies", graph, from, to, nullptr, count, Change::kAdd);
}

CUDASIM_EXPORT Result cuGraphAddDependencies_v2(Graph graph, const GraphNode* from, const GraphNode* to,
                                                const cu::GraphEdgeData* edges, std::size_t count) {
  return change_dependencies("cuGraphAddDependencies", graph, from, to, edges, count, Change::kAdd);
}

CUDASIM_EXPORT Result cuGraphRemoveDependencies(Graph graph, const GraphNode* from, const GraphNode* to,
                                                std::size_t count) {
  return change_dependencies("cuGraphRemoveDependencies", graph, from, to, nullptr, count, Change::kRemove);
}

CUDASIM_EXPORT Result cuGraphRemoveDependencies_v2(Graph graph, const GraphNode* from, const GraphNode* to,
                                                   const cu::GraphEdgeData* edges, std::size_t count) {
  return change_dependencies("cuGraphRemoveDependencies", graph, from, to, edges, count, Change::kRemove);
}

CUDASIM_EXPORT Result cuGraphKernelNodeGetParams_v2(GraphNode handle, cu::KernelNodeParams* params) {
  return enter("cuGraphKernelNodeGetParams", Need::kDriver, [&](Call& call) {
    require(params != nullptr, kInvalidValue);
    const NodeRef node = node_of(call, handle);
    const auto* kernel = node->work.params ? std::get_if<KernelParams>(&node->work.params->described) : nullptr;
    require(kernel != nullptr, kInvalidValue);
    *params = kernel->given;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphKernelNodeSetParams_v2(GraphNode handle, const cu::KernelNodeParams* params) {
  return enter("cuGraphKernelNodeSetParams", Need::kDriver, [&](Call& call) {
    const NodeRef node = node_of(call, handle);
    require(node->work.node == cu::GraphNodeType::kKernel, kInvalidValue);
    node->work = kernel_work(call, params);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuGraphMemcpyNodeGetParams(GraphNode node, cu::Memcpy3D* params) {
  return describe_node("cuGraphMemcpyNodeGetParams", node, params);
}

CUDASIM_EXPORT Result cuGraphMemsetNodeGetParams(GraphNode node, cu::MemsetNodeParams* params) {
  return describe_node("cuGraphMemsetNodeGetParams", node, params);
}

CUDASIM_EXPORT Result cuGraphHostNodeGetParams(GraphNode node, cu::HostNodeParams* params) {
  return describe_node("cuGraphHostNodeGetParams", node, params);
}
