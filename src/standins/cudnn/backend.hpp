// Descriptors of the backend interface: objects that keep the attributes that were set on them, and answer the questions
// that a program asks to get from a graph of operations to a plan that it can execute.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "standins/common/objects.hpp"

namespace standins::cudnn {

enum DescriptorType {  // cudnnBackendDescriptorType_t
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristics = 4,
  kPlan = 5,
  kConvolutionForward = 10,
  kConvolutionBackwardFilter = 11,
  kConvolutionBackwardData = 12,
  kGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kLastDescriptorType = 99,
};

enum AttributeType {  // cudnnBackendAttributeType_t
  kTypeHandle = 0,
  kTypeBoolean = 2,
  kTypeInt64 = 3,
  kTypeDouble = 5,
  kTypePointer = 6,
  kTypeNumericalNote = 11,
  kTypeDescriptor = 15,
  kTypeBehaviorNote = 19,
  kTypeInt32 = 23,
  kTypeChar = 24,
  kTypeFraction = 26,
};

enum AttributeName {  // cudnnBackendAttributeName_t
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kConfigEngine = 300,
  kConfigIntermediates = 301,
  kConfigKnobs = 302,
  kConfigWorkspace = 303,
  kConfigSharedMemory = 304,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kPlanComputedIntermediates = 403,
  kPlanRunOnlyIntermediates = 404,
  kPlanJson = 405,
  kGraphOperations = 801,
  kGraphEngineCount = 802,
  kTensorDataType = 901,
  kTensorSizes = 902,
  kTensorStrides = 903,
  kTensorIsVirtual = 907,
  kEngineGraph = 1300,
  kEngineIndex = 1301,
  kEngineKnobs = 1302,
  kEngineNumericalNotes = 1303,
  kEngineLayouts = 1304,
  kEngineBehaviorNotes = 1305,
  kKernelCacheIsCached = 2401,
  kKernelCacheJson = 2402,
  kDevicePropertiesJson = 2702,
};

struct Contents;
using ContentsRef = std::shared_ptr<const Contents>;
struct Planned;
using PlannedRef = std::shared_ptr<Planned>;

struct Attribute {
  int type = 0;
  std::int64_t count = 0;
  std::vector<unsigned char> bytes;   // of all types but descriptors
  std::vector<ContentsRef> children;  // of descriptors
};

// What a descriptor holds. It does not change any more once it is finalized, so descriptors share it: one that was set on
// another may be destroyed, as with cuDNN.
struct Contents {
  int type = 0;
  bool is_final = false;
  std::map<int, Attribute> attributes;
  mutable PlannedRef planned;  // the same of the real cuDNN, once it was asked (planner.hpp)

  const Attribute* find(int name) const;
  ContentsRef child(int name) const;  // the first one, or null
  std::vector<std::int64_t> integers(int name) const;
};

struct BackendDescriptor : Object {
  std::shared_ptr<Contents> contents = std::make_shared<Contents>();
};

std::size_t size_of_attribute(int type);  // bytes of an element

// An attribute that cuDNN works out: whether there is an answer, and which. `contents` is final.
bool derive(const Contents& contents, int name, Attribute& answer);

// The workspace of a plan or of an engine configuration.
std::int64_t graph_workspace(const Contents& contents);

}  // namespace standins::cudnn
