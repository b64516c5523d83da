// What cuDNN works out about a graph of operations: one engine runs it, without knobs and notes, in one configuration,
// with the workspace that is assumed for its convolutions.
#include <cstring>
#include <string_view>

#include "standins/cudnn/backend.hpp"
#include "standins/cudnn/cudnn.hpp"

namespace standins::cudnn {

namespace {

Attribute none(int type) { return {.type = type, .count = 0, .bytes = {}, .children = {}}; }

template <class T>
Attribute one(int type, T value) {
  Attribute answer{.type = type, .count = 1, .bytes = std::vector<unsigned char>(sizeof(T)), .children = {}};
  std::memcpy(answer.bytes.data(), &value, sizeof(T));
  return answer;
}

Attribute text(std::string_view characters) {
  return {.type = kTypeChar,
          .count = static_cast<std::int64_t>(characters.size()),
          .bytes = {characters.begin(), characters.end()},
          .children = {}};
}

Attribute descriptor(ContentsRef child) {
  return {.type = kTypeDescriptor, .count = 1, .bytes = {}, .children = {std::move(child)}};
}

ContentsRef only_configuration(const Contents& heuristics) {
  const ContentsRef graph = heuristics.child(kHeuristicsGraph);
  if (graph == nullptr) return nullptr;
  auto engine = std::make_shared<Contents>();
  engine->type = kEngine;
  engine->is_final = true;
  engine->attributes[kEngineGraph] = descriptor(graph);
  engine->attributes[kEngineIndex] = one<std::int64_t>(kTypeInt64, 0);
  auto configuration = std::make_shared<Contents>();
  configuration->type = kEngineConfig;
  configuration->is_final = true;
  configuration->attributes[kConfigEngine] = descriptor(std::move(engine));
  return configuration;
}

int data_type_of(const Contents& tensor) {
  const Attribute* const type = tensor.find(kTensorDataType);
  int data_type = 0;
  if (type != nullptr && type->bytes.size() >= sizeof data_type)
    std::memcpy(&data_type, type->bytes.data(), sizeof data_type);
  return data_type;
}

std::int64_t tensor_bytes(const Contents& tensor) {
  const std::vector<std::int64_t> sizes = tensor.integers(kTensorSizes);
  const std::vector<std::int64_t> strides = tensor.integers(kTensorStrides);
  const Attribute* const is_virtual = tensor.find(kTensorIsVirtual);
  if (sizes.empty() || sizes.size() != strides.size() || tensor.find(kTensorDataType) == nullptr) return 0;
  if (is_virtual != nullptr && !is_virtual->bytes.empty() && is_virtual->bytes[0] != 0) return 0;
  std::int64_t last = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] <= 0) return 0;
    last += (sizes[i] - 1) * strides[i];
  }
  return (last + 1) * size_of(data_type_of(tensor));
}

bool is_convolution(const Contents& operation) {
  return operation.type >= kConvolutionForward && operation.type <= kConvolutionBackwardData;
}

Convolved operands(const Contents& operation) {
  Convolved found;
  for (const auto& [name, attribute] : operation.attributes) {
    for (const ContentsRef& child : attribute.children) {
      if (child->type != kTensor) continue;
      const std::vector<std::int64_t> strides = child->integers(kTensorStrides);
      found.bytes += static_cast<std::uint64_t>(tensor_bytes(*child));
      found.is_half = found.is_half || is_half(data_type_of(*child));
      found.channels_last = found.channels_last || (strides.size() > 2 && strides[1] == 1);
    }
  }
  return found;
}

// A plan, a configuration and an engine all lead to a graph.
ContentsRef graph_of(const Contents& contents) {
  if (contents.type == kEngine) return contents.child(kEngineGraph);
  const ContentsRef next = contents.child(contents.type == kPlan ? kPlanConfig : kConfigEngine);
  return next == nullptr ? nullptr : graph_of(*next);
}

}  // namespace

std::int64_t graph_workspace(const Contents& contents) {
  if (const auto known = contents.integers(kPlanWorkspace); !known.empty()) return known.front();
  const ContentsRef graph = graph_of(contents);
  const Attribute* const operations = graph == nullptr ? nullptr : graph->find(kGraphOperations);
  if (operations == nullptr) return 0;
  std::uint64_t bytes = 0;
  for (const ContentsRef& operation : operations->children) {
    if (is_convolution(*operation)) bytes += workspace_of(operands(*operation));
  }
  return static_cast<std::int64_t>(bytes);
}

bool derive(const Contents& contents, int name, Attribute& answer) {
  switch (name) {
    case kGraphEngineCount:
      answer = one<std::int64_t>(kTypeInt64, 1);
      return true;
    case kHeuristicsResults: {
      ContentsRef configuration = only_configuration(contents);
      if (configuration == nullptr) return false;
      answer = descriptor(std::move(configuration));
      return true;
    }
    case kConfigWorkspace:
    case kPlanWorkspace:
      answer = one<std::int64_t>(kTypeInt64, graph_workspace(contents));
      return true;
    case kConfigSharedMemory:
      answer = one<std::int32_t>(kTypeInt32, 0);
      return true;
    case kConfigKnobs:
    case kConfigIntermediates:
    case kEngineKnobs:
    case kEngineLayouts:
      answer = none(kTypeDescriptor);
      return true;
    case kEngineNumericalNotes:
      answer = none(kTypeNumericalNote);
      return true;
    case kEngineBehaviorNotes:
      answer = none(kTypeBehaviorNote);
      return true;
    case kPlanComputedIntermediates:
    case kPlanRunOnlyIntermediates:
      answer = none(kTypeInt64);
      return true;
    case kKernelCacheIsCached:
      answer = one<bool>(kTypeBoolean, false);
      return true;
    case kPlanJson:
    case kKernelCacheJson:
    case kDevicePropertiesJson:
      answer = text("{}");
      return true;
    default:
      return false;
  }
}

}  // namespace standins::cudnn
