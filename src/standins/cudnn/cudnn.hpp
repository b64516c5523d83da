// What the parts of the cuDNN stand-in share: its statuses, its data types, and the descriptors of tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "standins/common/behaviours.hpp"

namespace standins::cudnn {

constexpr int kNotInitialized = 1001;    // CUDNN_STATUS_NOT_INITIALIZED
constexpr int kBadArgument = 2000;       // CUDNN_STATUS_BAD_PARAM
constexpr int kNoHandle = kBadArgument;  // what cuDNN says of a handle that is none
constexpr int kNotFinalized = 2004;      // CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED
constexpr int kOutOfBound = 2005;        // CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND
constexpr int kTooSmall = 2006;          // CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT
constexpr int kWrongType = 2010;         // CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE
constexpr int kNotSupported = 3000;      // CUDNN_STATUS_NOT_SUPPORTED

std::int64_t size_of(int data_type);  // bytes of an element of a cudnnDataType_t

// A tensor or a filter: sizes and strides in elements.
struct Tensor : Object {
  int data_type = 0;
  int format = 0;  // of a filter: cudnnTensorFormat_t
  std::vector<int> sizes, strides;

  void set(int type, std::vector<int> new_sizes, std::vector<int> new_strides);
  void set_packed(int type, int new_format, std::vector<int> new_sizes);
  std::int64_t bytes() const;  // from the first element to the last
};

bool is_half(int data_type);  // whether a cudnnDataType_t has 16 bits

// What a convolution asks for as workspace on the simulated card: common/catalogue.hpp, or CUDASIM_WORKSPACE_CUDNN.
std::uint64_t workspace_of(const Convolved& convolved);

}  // namespace standins::cudnn
