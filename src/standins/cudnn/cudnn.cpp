// cuDNN's table, its version and its errors, and descriptors of tensors and filters.
#include "standins/cudnn/cudnn.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "standins/common/version.hpp"
#include "standins/cudnn/rnn.hpp"

namespace standins::cudnn {

namespace {

// PyTorch refuses a cuDNN that is older than the one it was built for. CUDASIM_CUDNN_VERSION gives another version, as
// cudnnGetVersion has it: 92600 for 9.26.
constexpr std::size_t kVersion = 92600;

std::size_t version() {
  static const std::size_t value = [] {
    const char* const text = std::getenv("CUDASIM_CUDNN_VERSION");
    if (text == nullptr || *text == '\0') return kVersion;
    char* end = nullptr;
    const unsigned long given = std::strtoul(text, &end, 10);
    if (*end == '\0' && given >= 90000 && given < 100000) return static_cast<std::size_t>(given);
    std::fprintf(
        stderr,
        "cudasim: CUDASIM_CUDNN_VERSION: '%s' is not a version of cuDNN 9; write 92600 for 9.26.0. That is used.\n",
        text);
    return kVersion;
  }();
  return value;
}

// Assumptions. The states of a dropout are those of a random generator for each thread that runs at a time.
constexpr int kCapability = 80;  // where there is no device
constexpr std::size_t kDropoutStates = std::size_t{1} << 20;

std::int64_t dropout_mask(Word tensor) {  // a byte for each element
  const auto* const object = find<Tensor>(tensor);
  return object == nullptr ? 0 : object->bytes() / size_of(object->data_type);
}

std::uint64_t loss_workspace(Word probabilities) {
  const auto* const tensor = find<Tensor>(probabilities);
  return workspace("CUDNN", textbook(tensor == nullptr ? 0 : 2 * static_cast<std::uint64_t>(tensor->bytes())));
}

std::vector<int> packed_strides(const std::vector<int>& sizes) {
  std::vector<int> strides(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i > 1; --i) strides[i - 2] = strides[i - 1] * std::max(sizes[i - 1], 1);
  return strides;
}

std::vector<int> ints(Word address, Word count) {
  const int* const first = reinterpret_cast<const int*>(address);
  return {first, first + as_int(count)};
}

bool is_count(Word count) { return as_int(count) >= 1 && as_int(count) <= 8; }  // CUDNN_DIM_MAX

std::vector<int> four(Word a, Word b, Word c, Word d) {
  return {static_cast<int>(a), static_cast<int>(b), static_cast<int>(c), static_cast<int>(d)};
}

int set_packed(Word descriptor, Word type, Word format, std::vector<int> sizes) {
  auto* const tensor = find<Tensor>(descriptor);
  if (tensor == nullptr) return kBadArgument;
  tensor->set_packed(static_cast<int>(type), static_cast<int>(format), std::move(sizes));
  return 0;
}

void copy_some(const std::vector<int>& from, Word to, Word requested) {
  if (to == 0) return;
  const auto count = std::min(from.size(), static_cast<std::size_t>(std::max<std::int64_t>(as_int(requested), 0)));
  std::copy_n(from.data(), count, reinterpret_cast<int*>(to));
}

int tensor_bytes(Word descriptor, Word size) {
  const auto* const tensor = find<Tensor>(descriptor);
  if (tensor == nullptr) return kBadArgument;
  return write(size, static_cast<std::size_t>(tensor->bytes())) ? 0 : kBadArgument;
}

const char* status_name(int status) {
  switch (status) {
    case 0:
      return "CUDNN_STATUS_SUCCESS";
    case kNotInitialized:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    case kBadArgument:
      return "CUDNN_STATUS_BAD_PARAM";
    case kNotFinalized:
      return "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
    case kOutOfBound:
      return "CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND";
    case kTooSmall:
      return "CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT";
    case kWrongType:
      return "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE";
    case kNotSupported:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    default:
      return "CUDNN_STATUS_INTERNAL_ERROR";
  }
}

}  // namespace

std::int64_t size_of(int data_type) {
  switch (data_type) {
    case 1:   // double
    case 10:  // int64
    case 20:  // complex float
      return 8;
    case 21:  // complex double
      return 16;
    case 2:  // half
    case 9:  // bfloat16
      return 2;
    case 3:   // int8
    case 6:   // uint8
    case 11:  // boolean
    case 12:  // 8-bit floats
    case 13:
    case 15:
    case 16:  // 4-bit types take a byte here
    case 17:
    case 18:
    case 22:
    case 23:
      return 1;
    case 8:  // int8x32
      return 32;
    default:
      return 4;
  }
}

void Tensor::set(int type, std::vector<int> new_sizes, std::vector<int> new_strides) {
  data_type = type;
  sizes = std::move(new_sizes);
  strides = std::move(new_strides);
}

void Tensor::set_packed(int type, int new_format, std::vector<int> new_sizes) {
  format = new_format;
  std::vector<int> new_strides = packed_strides(new_sizes);
  set(type, std::move(new_sizes), std::move(new_strides));
}

std::int64_t Tensor::bytes() const {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] <= 0) return 0;
    last += static_cast<std::int64_t>(sizes[i] - 1) * strides[i];
  }
  return sizes.empty() ? 0 : (last + 1) * size_of(data_type);
}

bool is_half(int data_type) { return size_of(data_type) == 2; }

std::uint64_t workspace_of(const Convolved& convolved) {
  const int capability = compute_capability();
  return workspace("CUDNN", convolution_workspace(convolved, capability != 0 ? capability : kCapability));
}

#include "standins/cudnn/cudnn.def"

RETURN(cudnnGetErrorString, const char*, status_name(static_cast<int>(a0)))

// A failed call says what is wrong by its status; there is no more to tell.
STANDIN_EXPORT void cudnnGetLastErrorString(char* message, std::size_t size) {
  if (message != nullptr && size > 0) std::snprintf(message, size, "%s", "");
}

// (descriptor, format, type, n, c, h, w)
STANDIN_FUNCTION(cudnnSetTensor4dDescriptor) { return set_packed(a0, a2, a1, four(a3, a4, a5, a6)); }
// (descriptor, type, format, k, c, h, w)
STANDIN_FUNCTION(cudnnSetFilter4dDescriptor) { return set_packed(a0, a1, a2, four(a3, a4, a5, a6)); }
// (descriptor, format, type, count, sizes)
STANDIN_FUNCTION(cudnnSetTensorNdDescriptorEx) {
  return is_count(a3) && a4 != 0 ? set_packed(a0, a2, a1, ints(a4, a3)) : kBadArgument;
}
// (descriptor, type, format, count, sizes)
STANDIN_FUNCTION(cudnnSetFilterNdDescriptor) {
  return is_count(a3) && a4 != 0 ? set_packed(a0, a1, a2, ints(a4, a3)) : kBadArgument;
}

// (descriptor, type, n, c, h, w, strides of n, c, h, w)
STANDIN_FUNCTION(cudnnSetTensor4dDescriptorEx) {
  auto* const tensor = find<Tensor>(a0);
  if (tensor == nullptr) return kBadArgument;
  tensor->set(static_cast<int>(a1), four(a2, a3, a4, a5), four(a6, a7, a8, a9));
  return 0;
}

// (descriptor, type, count, sizes, strides)
STANDIN_FUNCTION(cudnnSetTensorNdDescriptor) {
  auto* const tensor = find<Tensor>(a0);
  if (tensor == nullptr || !is_count(a2) || a3 == 0 || a4 == 0) return kBadArgument;
  tensor->set(static_cast<int>(a1), ints(a3, a2), ints(a4, a2));
  return 0;
}

// (descriptor, requested, type, count, sizes, strides)
STANDIN_FUNCTION(cudnnGetTensorNdDescriptor) {
  const auto* const tensor = find<Tensor>(a0);
  if (tensor == nullptr) return kBadArgument;
  write(a2, tensor->data_type);
  write(a3, static_cast<int>(tensor->sizes.size()));
  copy_some(tensor->sizes, a4, a1);
  copy_some(tensor->strides, a5, a1);
  return 0;
}

// (descriptor, requested, type, format, count, sizes)
STANDIN_FUNCTION(cudnnGetFilterNdDescriptor) {
  const auto* const tensor = find<Tensor>(a0);
  if (tensor == nullptr) return kBadArgument;
  write(a2, tensor->data_type);
  write(a3, tensor->format);
  write(a4, static_cast<int>(tensor->sizes.size()));
  copy_some(tensor->sizes, a5, a1);
  return 0;
}

STANDIN_FUNCTION(cudnnGetTensorSizeInBytes) { return tensor_bytes(a0, a1); }
STANDIN_FUNCTION(cudnnGetFilterSizeInBytes) { return tensor_bytes(a0, a1); }

// (derived, x, mode): one value for each channel; with mode 0, one for each element of a sample. At least single precision.
STANDIN_FUNCTION(cudnnDeriveBNTensorDescriptor) {
  auto* const derived = find<Tensor>(a0);
  const auto* const x = find<Tensor>(a1);
  if (derived == nullptr || x == nullptr || x->sizes.size() < 2) return kBadArgument;
  std::vector<int> sizes = x->sizes;
  sizes[0] = 1;
  if (as_int(a2) != 0) std::fill(sizes.begin() + 2, sizes.end(), 1);
  derived->set_packed(x->data_type == 1 ? 1 : 0, 0, std::move(sizes));
  return 0;
}

}  // namespace standins::cudnn
