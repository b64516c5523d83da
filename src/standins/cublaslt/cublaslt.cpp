// cuBLASLt: descriptors keep their attributes, and the heuristic knows one algorithm that suits every product.
#include <algorithm>
#include <cstring>

#include "standins/common/attributes.hpp"
#include "standins/common/behaviours.hpp"
#include "standins/common/version.hpp"

namespace {

using namespace standins;

constexpr int kNoHandle = 1;     // CUBLAS_STATUS_NOT_INITIALIZED
constexpr int kBadArgument = 7;  // CUBLAS_STATUS_INVALID_VALUE
constexpr int kVersion = by_release(120900, 130400);

constexpr int kMaxWorkspace = 1;  // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES

struct Described : Object {
  Attributes attributes;
};

// cublasLtMatmulAlgo_t: opaque, 64 bytes. A configuration attribute is at most 32 bits wide; number n is word n.
struct Algorithm {
  std::uint32_t words[16];
};

// cublasLtMatmulHeuristicResult_t
struct HeuristicResult {
  Algorithm algorithm;
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(HeuristicResult) == 96);

int set_attribute(Word descriptor, Word attribute, Word buffer, std::size_t size) {
  auto* const object = find<Described>(descriptor);
  if (object == nullptr || buffer == 0) return kBadArgument;
  object->attributes.set(static_cast<int>(attribute), buffer, size);
  return 0;
}

int get_attribute(Word descriptor, Word attribute, Word buffer, std::size_t size, Word written) {
  const auto* const object = find<Described>(descriptor);
  if (object == nullptr) return kBadArgument;
  const std::size_t known = object->attributes.get(static_cast<int>(attribute), buffer, size);
  write<std::size_t>(written, known > 0 ? known : size);
  return 0;
}

// An algorithm wants the workspace of the setting, but never more than the program allows.
HeuristicResult result_within(std::uint64_t limit) {
  HeuristicResult result{};
  result.workspace = std::min<std::uint64_t>(workspace("CUBLASLT", 0), limit);
  result.waves = 1.0F;
  return result;
}

// (handle, operation, A, B, C, D, preference, requested, results, returned)
int heuristic(Word handle, Word preference, Word requested, Word results, Word returned) {
  if (handle == 0) return kNoHandle;
  if (results == 0 || returned == 0 || as_int(requested) < 1) return kBadArgument;
  const auto* const limits = find<Described>(preference);
  const std::uint64_t limit = limits == nullptr ? 0 : limits->attributes.value<std::uint64_t>(kMaxWorkspace, 0);
  *reinterpret_cast<HeuristicResult*>(results) = result_within(limit);
  write<int>(returned, 1);
  return 0;
}

int configure(Word algorithm, Word attribute, Word buffer, std::size_t size) {
  const Word word = static_cast<unsigned>(attribute);
  if (algorithm == 0 || buffer == 0 || word >= 16 || size > sizeof(std::uint32_t)) return kBadArgument;
  std::uint32_t value = 0;
  std::memcpy(&value, reinterpret_cast<const void*>(buffer), size);
  reinterpret_cast<Algorithm*>(algorithm)->words[word] = value;
  return 0;
}

int configuration(Word algorithm, Word attribute, Word buffer, std::size_t size, Word written) {
  const Word word = static_cast<unsigned>(attribute);
  if (algorithm == 0 || word >= 16) return kBadArgument;
  write<std::size_t>(written, sizeof(std::uint32_t));
  if (buffer != 0) {
    std::memcpy(reinterpret_cast<void*>(buffer), &reinterpret_cast<const Algorithm*>(algorithm)->words[word],
                std::min(size, sizeof(std::uint32_t)));
  }
  return 0;
}

const char* status_name(Word status) {
  switch (static_cast<int>(status)) {
    case 0:
      return "CUBLAS_STATUS_SUCCESS";
    case kNoHandle:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case kBadArgument:
      return "CUBLAS_STATUS_INVALID_VALUE";
    default:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
  }
}

}  // namespace

#include "standins/cublaslt/cublaslt.def"

RETURN(cublasLtGetStatusName, const char*, status_name(a0))
RETURN(cublasLtGetStatusString, const char*, status_name(a0))

STANDIN_FUNCTION(cublasLtMatmulDescSetAttribute) { return set_attribute(a0, a1, a2, a3); }
STANDIN_FUNCTION(cublasLtMatrixLayoutSetAttribute) { return set_attribute(a0, a1, a2, a3); }
STANDIN_FUNCTION(cublasLtMatrixTransformDescSetAttribute) { return set_attribute(a0, a1, a2, a3); }
STANDIN_FUNCTION(cublasLtMatmulPreferenceSetAttribute) { return set_attribute(a0, a1, a2, a3); }
STANDIN_FUNCTION(cublasLtMatmulDescGetAttribute) { return get_attribute(a0, a1, a2, a3, a4); }
STANDIN_FUNCTION(cublasLtMatrixLayoutGetAttribute) { return get_attribute(a0, a1, a2, a3, a4); }
STANDIN_FUNCTION(cublasLtMatrixTransformDescGetAttribute) { return get_attribute(a0, a1, a2, a3, a4); }
STANDIN_FUNCTION(cublasLtMatmulPreferenceGetAttribute) { return get_attribute(a0, a1, a2, a3, a4); }

STANDIN_FUNCTION(cublasLtMatmulAlgoGetHeuristic) { return heuristic(a0, a6, a7, a8, a9); }
STANDIN_FUNCTION(cublasLtMatmulAlgoConfigSetAttribute) { return configure(a0, a1, a2, a3); }
STANDIN_FUNCTION(cublasLtMatmulAlgoConfigGetAttribute) { return configuration(a0, a1, a2, a3, a4); }

// (handle, compute type, scale type, A, B, C, D, requested, ids, returned)
STANDIN_FUNCTION(cublasLtMatmulAlgoGetIds) {
  if (a0 == 0) return kNoHandle;
  if (as_int(a7) < 1 || !write<int>(a8, 0) || !write<int>(a9, 1)) return kBadArgument;
  return 0;
}

// (handle, compute type, scale type, A, B, C, D, id, algorithm)
STANDIN_FUNCTION(cublasLtMatmulAlgoInit) {
  if (a0 == 0) return kNoHandle;
  if (a8 == 0) return kBadArgument;
  auto* const algorithm = reinterpret_cast<Algorithm*>(a8);
  *algorithm = {};
  algorithm->words[0] = static_cast<std::uint32_t>(a7);
  return 0;
}

// (handle, operation, A, B, C, D, algorithm, result). The algorithm may be the one in the result.
STANDIN_FUNCTION(cublasLtMatmulAlgoCheck) {
  if (a0 == 0) return kNoHandle;
  if (a6 == 0 || a7 == 0) return kBadArgument;
  HeuristicResult result = result_within(UINT64_MAX);
  result.algorithm = *reinterpret_cast<const Algorithm*>(a6);
  *reinterpret_cast<HeuristicResult*>(a7) = result;
  return 0;
}

// No algorithm has capabilities beyond the plain ones: all of them are 0.
STANDIN_FUNCTION(cublasLtMatmulAlgoCapGetAttribute) {
  if (a0 == 0) return kBadArgument;
  if (a2 != 0) std::memset(reinterpret_cast<void*>(a2), 0, a3);
  write<std::size_t>(a4, a3);
  return 0;
}

STANDIN_FUNCTION(cublasLtMatmul) {
  return a0 != 0 && find_object(a1) != nullptr ? 0 : (a0 == 0 ? kNoHandle : kBadArgument);
}
STANDIN_FUNCTION(cublasLtMatrixTransform) { return a0 != 0 ? 0 : kNoHandle; }
