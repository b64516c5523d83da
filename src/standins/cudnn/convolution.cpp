// Convolutions without the backend interface: one algorithm for each direction, deterministic, with the workspace that
// the catalogue says.
#include <initializer_list>

#include "standins/cudnn/cudnn.hpp"

namespace standins::cudnn {

namespace {

// cudnnConvolutionFwdAlgoPerf_t, and the same for the other directions
struct Performance {
  int algorithm;
  int status;
  float milliseconds;
  std::size_t memory;
  int determinism;
  int math_type;
  int reserved[3];
};
static_assert(sizeof(Performance) == 48);

constexpr int kAlgorithm = 1;      // implicit GEMM with precomputed indices, or its like
constexpr int kDeterministic = 1;  // CUDNN_DETERMINISTIC

std::uint64_t workspace_for(std::initializer_list<Word> tensors) {
  Convolved convolved;
  for (const Word descriptor : tensors) {
    const auto* const tensor = find<Tensor>(descriptor);
    if (tensor == nullptr) continue;
    if (convolved.bytes == 0) {
      convolved.is_half = is_half(tensor->data_type);
      convolved.channels_last = tensor->strides.size() > 2 && tensor->strides[1] == 1;
    }
    convolved.bytes += static_cast<std::uint64_t>(tensor->bytes());
  }
  return workspace_of(convolved);
}

int list_algorithm(Word handle, std::initializer_list<Word> tensors, Word requested, Word returned, Word results) {
  if (find_object(handle) == nullptr) return kNoHandle;
  if (as_int(requested) < 1 || returned == 0 || results == 0) return kBadArgument;
  Performance& result = *reinterpret_cast<Performance*>(results);
  result = {};
  result.algorithm = kAlgorithm;
  result.memory = workspace_for(tensors);
  result.determinism = kDeterministic;
  write<int>(returned, 1);
  return 0;
}

int size_for(Word handle, std::initializer_list<Word> tensors, Word size) {
  if (find_object(handle) == nullptr) return kNoHandle;
  return write<std::size_t>(size, workspace_for(tensors)) ? 0 : kBadArgument;
}

}  // namespace

// (handle, tensor, tensor, convolution, tensor, requested, returned, results)
STANDIN_FUNCTION(cudnnGetConvolutionForwardAlgorithm_v7) { return list_algorithm(a0, {a1, a2, a4}, a5, a6, a7); }
STANDIN_FUNCTION(cudnnGetConvolutionBackwardDataAlgorithm_v7) { return list_algorithm(a0, {a1, a2, a4}, a5, a6, a7); }
STANDIN_FUNCTION(cudnnGetConvolutionBackwardFilterAlgorithm_v7) { return list_algorithm(a0, {a1, a2, a4}, a5, a6, a7); }
STANDIN_FUNCTION(cudnnFindConvolutionForwardAlgorithm) { return list_algorithm(a0, {a1, a2, a4}, a5, a6, a7); }
STANDIN_FUNCTION(cudnnFindConvolutionBackwardDataAlgorithm) { return list_algorithm(a0, {a1, a2, a4}, a5, a6, a7); }
STANDIN_FUNCTION(cudnnFindConvolutionBackwardFilterAlgorithm) { return list_algorithm(a0, {a1, a2, a4}, a5, a6, a7); }

// (handle, tensor, data, tensor, data, convolution, tensor, data, requested, returned, results, workspace, size)
STANDIN_FUNCTION(cudnnFindConvolutionForwardAlgorithmEx) { return list_algorithm(a0, {a1, a3, a6}, a8, a9, a10); }
STANDIN_FUNCTION(cudnnFindConvolutionBackwardDataAlgorithmEx) { return list_algorithm(a0, {a1, a3, a6}, a8, a9, a10); }
STANDIN_FUNCTION(cudnnFindConvolutionBackwardFilterAlgorithmEx) {
  return list_algorithm(a0, {a1, a3, a6}, a8, a9, a10);
}

// (handle, tensor, tensor, convolution, tensor, algorithm, size)
STANDIN_FUNCTION(cudnnGetConvolutionForwardWorkspaceSize) { return size_for(a0, {a1, a2, a4}, a6); }
STANDIN_FUNCTION(cudnnGetConvolutionBackwardDataWorkspaceSize) { return size_for(a0, {a1, a2, a4}, a6); }
STANDIN_FUNCTION(cudnnGetConvolutionBackwardFilterWorkspaceSize) { return size_for(a0, {a1, a2, a4}, a6); }

}  // namespace standins::cudnn
