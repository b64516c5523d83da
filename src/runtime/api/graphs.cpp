// Captures, graphs, and objects whose life a graph extends.
#include "runtime/exports.hpp"
#include "runtime/state.hpp"

using namespace cudart;

namespace {

struct CaptureOut {
  cu::CaptureStatus* status = nullptr;
  unsigned long long* id = nullptr;
  rt::Graph* graph = nullptr;
  const rt::GraphNode** dependencies = nullptr;
  const rt::GraphEdgeData** edges = nullptr;
  std::size_t* count = nullptr;
};

Error capture_info(rt::Stream stream, const CaptureOut& out) {
  return with_context([&](const Driver& driver) {
    return driver.cuStreamGetCaptureInfo_v3(stream_for(stream), out.status, out.id, out.graph, out.dependencies,
                                            out.edges, out.count);
  });
}

Error update_dependencies(rt::Stream stream, rt::GraphNode* dependencies, const rt::GraphEdgeData* edges,
                          std::size_t count, unsigned flags) {
  return with_context([&](const Driver& driver) {
    return driver.cuStreamUpdateCaptureDependencies_v2(stream_for(stream), dependencies, edges, count, flags);
  });
}

Error node_dependencies(rt::GraphNode node, rt::GraphNode* dependencies, rt::GraphEdgeData* edges, std::size_t* count) {
  return with_context(
      [&](const Driver& driver) { return driver.cuGraphNodeGetDependencies_v2(node, dependencies, edges, count); });
}

}  // namespace

CUDART_EXPORT Error cudaStreamBeginCapture(rt::Stream stream, cu::CaptureMode mode) {
  return with_context([&](const Driver& driver) { return driver.cuStreamBeginCapture_v2(stream_for(stream), mode); });
}

CUDART_EXPORT Error cudaStreamBeginCaptureToGraph(rt::Stream stream, rt::Graph graph, const rt::GraphNode* dependencies,
                                                  const rt::GraphEdgeData* edges, std::size_t count,
                                                  cu::CaptureMode mode) {
  return with_context([&](const Driver& driver) {
    return driver.cuStreamBeginCaptureToGraph(stream_for(stream), graph, dependencies, edges, count, mode);
  });
}

CUDART_EXPORT Error cudaStreamEndCapture(rt::Stream stream, rt::Graph* graph) {
  return with_context([&](const Driver& driver) { return driver.cuStreamEndCapture(stream_for(stream), graph); });
}

CUDART_EXPORT Error cudaStreamIsCapturing(rt::Stream stream, cu::CaptureStatus* status) {
  return with_context([&](const Driver& driver) { return driver.cuStreamIsCapturing(stream_for(stream), status); });
}

CUDART_EXPORT Error cudaThreadExchangeStreamCaptureMode(cu::CaptureMode* mode) {
  return with_driver([&](const Driver& driver) { return driver.cuThreadExchangeStreamCaptureMode(mode); });
}

#if CUDART_MAJOR >= 13
CUDART_EXPORT Error cudaStreamGetCaptureInfo(rt::Stream stream, cu::CaptureStatus* status, unsigned long long* id,
                                             rt::Graph* graph, const rt::GraphNode** dependencies,
                                             const rt::GraphEdgeData** edges, std::size_t* count) {
  return capture_info(
      stream,
      {.status = status, .id = id, .graph = graph, .dependencies = dependencies, .edges = edges, .count = count});
}
CUDART_EXPORT Error cudaStreamUpdateCaptureDependencies(rt::Stream stream, rt::GraphNode* dependencies,
                                                        const rt::GraphEdgeData* edges, std::size_t count,
                                                        unsigned flags) {
  return update_dependencies(stream, dependencies, edges, count, flags);
}
CUDART_EXPORT Error cudaGraphNodeGetDependencies(rt::GraphNode node, rt::GraphNode* dependencies,
                                                 rt::GraphEdgeData* edges, std::size_t* count) {
  return node_dependencies(node, dependencies, edges, count);
}
#else
CUDART_EXPORT Error cudaStreamGetCaptureInfo(rt::Stream stream, cu::CaptureStatus* status, unsigned long long* id) {
  return capture_info(stream, {.status = status, .id = id});
}
CUDART_EXPORT Error cudaStreamGetCaptureInfo_v2(rt::Stream stream, cu::CaptureStatus* status, unsigned long long* id,
                                                rt::Graph* graph, const rt::GraphNode** dependencies,
                                                std::size_t* count) {
  return capture_info(stream,
                      {.status = status, .id = id, .graph = graph, .dependencies = dependencies, .count = count});
}
CUDART_EXPORT Error cudaStreamGetCaptureInfo_v3(rt::Stream stream, cu::CaptureStatus* status, unsigned long long* id,
                                                rt::Graph* graph, const rt::GraphNode** dependencies,
                                                const rt::GraphEdgeData** edges, std::size_t* count) {
  return capture_info(
      stream,
      {.status = status, .id = id, .graph = graph, .dependencies = dependencies, .edges = edges, .count = count});
}
CUDART_EXPORT Error cudaStreamUpdateCaptureDependencies(rt::Stream stream, rt::GraphNode* dependencies,
                                                        std::size_t count, unsigned flags) {
  return update_dependencies(stream, dependencies, nullptr, count, flags);
}
CUDART_EXPORT Error cudaStreamUpdateCaptureDependencies_v2(rt::Stream stream, rt::GraphNode* dependencies,
                                                           const rt::GraphEdgeData* edges, std::size_t count,
                                                           unsigned flags) {
  return update_dependencies(stream, dependencies, edges, count, flags);
}
CUDART_EXPORT Error cudaGraphNodeGetDependencies(rt::GraphNode node, rt::GraphNode* dependencies, std::size_t* count) {
  return node_dependencies(node, dependencies, nullptr, count);
}
CUDART_EXPORT Error cudaGraphNodeGetDependencies_v2(rt::GraphNode node, rt::GraphNode* dependencies,
                                                    rt::GraphEdgeData* edges, std::size_t* count) {
  return node_dependencies(node, dependencies, edges, count);
}
#endif

CUDART_EXPORT Error cudaGraphCreate(rt::Graph* graph, unsigned flags) {
  return with_context([&](const Driver& driver) { return driver.cuGraphCreate(graph, flags); });
}

CUDART_EXPORT Error cudaGraphDestroy(rt::Graph graph) {
  return with_context([&](const Driver& driver) { return driver.cuGraphDestroy(graph); });
}

CUDART_EXPORT Error cudaGraphClone(rt::Graph* clone, rt::Graph graph) {
  return with_context([&](const Driver& driver) { return driver.cuGraphClone(clone, graph); });
}

CUDART_EXPORT Error cudaGraphGetNodes(rt::Graph graph, rt::GraphNode* nodes, std::size_t* count) {
  return with_context([&](const Driver& driver) { return driver.cuGraphGetNodes(graph, nodes, count); });
}

CUDART_EXPORT Error cudaGraphGetRootNodes(rt::Graph graph, rt::GraphNode* nodes, std::size_t* count) {
  return with_context([&](const Driver& driver) { return driver.cuGraphGetRootNodes(graph, nodes, count); });
}

CUDART_EXPORT Error cudaGraphNodeGetType(rt::GraphNode node, unsigned* type) {
  return with_context([&](const Driver& driver) { return driver.cuGraphNodeGetType(node, type); });
}

CUDART_EXPORT Error cudaGraphDestroyNode(rt::GraphNode node) {
  return with_context([&](const Driver& driver) { return driver.cuGraphDestroyNode(node); });
}

CUDART_EXPORT Error cudaGraphAddEmptyNode(rt::GraphNode* node, rt::Graph graph, const rt::GraphNode* dependencies,
                                          std::size_t count) {
  return with_context(
      [&](const Driver& driver) { return driver.cuGraphAddEmptyNode(node, graph, dependencies, count); });
}

CUDART_EXPORT Error cudaGraphInstantiate(rt::GraphExec* exec, rt::Graph graph, unsigned long long flags) {
  return with_context([&](const Driver& driver) { return driver.cuGraphInstantiateWithFlags(exec, graph, flags); });
}

CUDART_EXPORT Error cudaGraphInstantiateWithFlags(rt::GraphExec* exec, rt::Graph graph, unsigned long long flags) {
  return cudaGraphInstantiate(exec, graph, flags);
}

CUDART_EXPORT Error cudaGraphUpload(rt::GraphExec exec, rt::Stream stream) {
  return with_context([&](const Driver& driver) { return driver.cuGraphUpload(exec, stream_for(stream)); });
}

CUDART_EXPORT Error cudaGraphLaunch(rt::GraphExec exec, rt::Stream stream) {
  return with_context([&](const Driver& driver) { return driver.cuGraphLaunch(exec, stream_for(stream)); });
}

CUDART_EXPORT Error cudaGraphExecDestroy(rt::GraphExec exec) {
  return with_context([&](const Driver& driver) { return driver.cuGraphExecDestroy(exec); });
}

CUDART_EXPORT Error cudaGraphExecGetFlags(rt::GraphExec exec, unsigned long long* flags) {
  return with_context([&](const Driver& driver) { return driver.cuGraphExecGetFlags(exec, flags); });
}

CUDART_EXPORT Error cudaGraphDebugDotPrint(rt::Graph graph, const char* path, unsigned flags) {
  return with_context([&](const Driver& driver) { return driver.cuGraphDebugDotPrint(graph, path, flags); });
}

CUDART_EXPORT Error cudaUserObjectCreate(rt::UserObject* object, void* data, rt::HostFunction destroy,
                                         unsigned references, unsigned flags) {
  return with_context(
      [&](const Driver& driver) { return driver.cuUserObjectCreate(object, data, destroy, references, flags); });
}

CUDART_EXPORT Error cudaUserObjectRetain(rt::UserObject object, unsigned count) {
  return with_context([&](const Driver& driver) { return driver.cuUserObjectRetain(object, count); });
}

CUDART_EXPORT Error cudaUserObjectRelease(rt::UserObject object, unsigned count) {
  return with_context([&](const Driver& driver) { return driver.cuUserObjectRelease(object, count); });
}

CUDART_EXPORT Error cudaGraphRetainUserObject(rt::Graph graph, rt::UserObject object, unsigned count, unsigned flags) {
  return with_context(
      [&](const Driver& driver) { return driver.cuGraphRetainUserObject(graph, object, count, flags); });
}

CUDART_EXPORT Error cudaGraphReleaseUserObject(rt::Graph graph, rt::UserObject object, unsigned count) {
  return with_context([&](const Driver& driver) { return driver.cuGraphReleaseUserObject(graph, object, count); });
}
