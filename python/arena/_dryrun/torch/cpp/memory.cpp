#include "memory.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/where.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace arena::values {
namespace {

constexpr std::int64_t kMostRows = 4096;
constexpr double kInfinity = 100;  // exp(-100) is zero beside other probabilities, exp(100) is a float

// Of the first element. Strides are never negative.
std::uint64_t address_of(const at::Tensor& tensor) { return reinterpret_cast<std::uint64_t>(tensor.const_data_ptr()); }

// Rows of bytes that follow each other without a gap, `count` of them.
struct Rows {
  std::uint64_t first = 0;                   // address
  std::uint64_t size = 0;                    // bytes of each
  std::vector<std::int64_t> sizes, strides;  // of the dimensions that remain; strides in bytes
  std::int64_t count = 1;
  std::uint64_t span = 0;  // bytes from the first to the last
};

Rows rows_of(const at::Tensor& tensor) {
  Rows rows;
  rows.first = address_of(tensor);
  rows.size = tensor.element_size();
  rows.span = rows.size;
  struct Dimension {
    std::int64_t size, stride;
  };
  std::vector<Dimension> dimensions;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) == 0) return {.first = rows.first};
    const auto stride = tensor.stride(i) * static_cast<std::int64_t>(tensor.element_size());
    if (tensor.size(i) == 1 || stride == 0) continue;  // an expanded dimension is the same bytes again
    dimensions.push_back({tensor.size(i), stride});
    rows.span += static_cast<std::uint64_t>((tensor.size(i) - 1) * stride);
  }
  std::sort(dimensions.begin(), dimensions.end(), [](auto a, auto b) { return a.stride < b.stride; });
  for (const Dimension& one : dimensions) {
    if (rows.sizes.empty() && static_cast<std::uint64_t>(one.stride) <= rows.size) {
      rows.size += static_cast<std::uint64_t>((one.size - 1) * one.stride);
      continue;
    }
    rows.sizes.push_back(one.size);
    rows.strides.push_back(one.stride);
    rows.count *= one.size;
  }
  return rows;
}

template <typename Function>
void each_row(const Rows& rows, const Function& function) {
  std::vector<std::int64_t> index(rows.sizes.size(), 0);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    std::uint64_t at = rows.first;
    for (std::size_t d = 0; d < index.size(); ++d) at += static_cast<std::uint64_t>(index[d] * rows.strides[d]);
    function(at);
    for (std::size_t d = 0; d < index.size() && ++index[d] == rows.sizes[d]; ++d) index[d] = 0;
  }
}

}  // namespace

bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda() && tensor.layout() == at::kStrided && !tensor.is_nested() &&
         !tensor.is_quantized() && tensor.has_storage() && !tensor.unsafeGetTensorImpl()->is_python_dispatch();
}

at::Tensor alias(const at::Tensor& tensor) {
  const c10::Storage& of_device = tensor.storage();
  c10::DataPtr data(const_cast<void*>(of_device.data()), at::Device(at::kCPU));
  c10::Storage storage(c10::Storage::use_byte_size_t(), of_device.nbytes(), std::move(data), nullptr, false);
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                   tensor.dtype());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  at::Tensor made(std::move(impl));
  if (tensor.is_conj()) made._set_conj(true);
  if (tensor.is_neg()) made._set_neg(true);
  return made;
}

Knowledge knowledge(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) {
    return tensor.numel() == 0 ? Knowledge::kAll
                               : static_cast<Knowledge>(marks.query(address_of(tensor), tensor.nbytes()));
  }
  const Rows rows = rows_of(tensor);
  if (rows.size == 0) return Knowledge::kAll;
  if (rows.count == 1) return static_cast<Knowledge>(marks.query(rows.first, rows.size));
  const auto whole = static_cast<Knowledge>(marks.query(rows.first, rows.span));
  if (whole != Knowledge::kSome || rows.count > kMostRows) return whole;
  bool any = false, all = true;
  each_row(rows, [&](std::uint64_t at) {
    const auto row = static_cast<Knowledge>(marks.query(at, rows.size));
    any = any || row != Knowledge::kNone;
    all = all && row == Knowledge::kAll;
  });
  return all ? Knowledge::kAll : any ? Knowledge::kSome : Knowledge::kNone;
}

void mark(const at::Tensor& tensor, State state) {
  if (tensor.is_non_overlapping_and_dense()) {
    if (tensor.numel() > 0) marks.mark(address_of(tensor), tensor.nbytes(), static_cast<int>(state));
    return;
  }
  const Rows rows = rows_of(tensor);
  if (rows.size == 0) return;
  if (rows.count > kMostRows && state == State::kUnknown) {
    marks.settle(rows.first, rows.span);  // what lies between keeps its bytes where they are to be read
    marks.mark(rows.first, rows.span, static_cast<int>(State::kZero));
    return;
  }
  each_row(rows, [&](std::uint64_t at) { marks.mark(at, rows.size, static_cast<int>(state)); });
}

at::Tensor known_elements(const at::Tensor& tensor) {
  at::Tensor known = at::empty(tensor.sizes(), at::TensorOptions().dtype(at::kBool));
  auto* out = static_cast<bool*>(known.mutable_data_ptr());
  const auto width = static_cast<std::uint64_t>(tensor.element_size());
  std::vector<unsigned char> bytes;
  const auto base = address_of(tensor);
  if (tensor.is_contiguous()) {
    bytes.resize(static_cast<std::size_t>(tensor.numel()) * width);
    if (!bytes.empty()) marks.read(base, bytes.size(), bytes.data());
    for (std::int64_t i = 0; i < tensor.numel(); ++i) {
      out[i] = std::all_of(&bytes[i * width], &bytes[i * width] + width, [](unsigned char one) { return one != 0; });
    }
    return known;
  }
  std::vector<std::int64_t> index(static_cast<std::size_t>(tensor.dim()), 0);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < index.size(); ++d) offset += index[d] * tensor.stride(static_cast<std::int64_t>(d));
    out[i] = marks.query(base + static_cast<std::uint64_t>(offset) * width, width) == 1;
    for (std::size_t d = index.size(); d-- > 0 && ++index[d] == tensor.size(static_cast<std::int64_t>(d));)
      index[d] = 0;
  }
  return known;
}

void mark_elements(const at::Tensor& tensor, const at::Tensor& known) {
  const at::Tensor flags = known.expand(tensor.sizes()).contiguous();
  const auto* in = static_cast<const bool*>(flags.const_data_ptr());
  const auto width = static_cast<std::uint64_t>(tensor.element_size());
  const auto base = address_of(tensor);
  if (tensor.is_contiguous()) {
    std::vector<unsigned char> bytes(static_cast<std::size_t>(tensor.numel()) * width);
    for (std::int64_t i = 0; i < tensor.numel(); ++i) std::memset(&bytes[i * width], in[i] ? 1 : 0, width);
    if (!bytes.empty()) marks.write(base, bytes.size(), bytes.data());
    return;
  }
  std::vector<std::int64_t> index(static_cast<std::size_t>(tensor.dim()), 0);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < index.size(); ++d) offset += index[d] * tensor.stride(static_cast<std::int64_t>(d));
    marks.mark(base + static_cast<std::uint64_t>(offset) * width, width,
               static_cast<int>(in[i] ? State::kKnown : State::kZero));
    for (std::size_t d = index.size(); d-- > 0 && ++index[d] == tensor.size(static_cast<std::int64_t>(d));)
      index[d] = 0;
  }
}

void settle(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) {
    if (tensor.numel() > 0) marks.settle(address_of(tensor), tensor.nbytes());
    return;
  }
  const Rows rows = rows_of(tensor);
  if (rows.size > 0) marks.settle(rows.first, rows.span);
}

at::Tensor finite(const at::Tensor& value, const std::optional<at::Tensor>& known) {
  if (!value.defined()) return value;
  const at::ScalarType type = value.scalar_type();
  if (type != at::kFloat && type != at::kDouble && type != at::kHalf && type != at::kBFloat16) return value;
  const at::Tensor made = at::nan_to_num(value, 0.0, kInfinity, -kInfinity);
  return known ? at::where(*known, value, made) : made;
}

bool store(const at::Tensor& target, const at::Tensor& value) {
  if (!value.defined() || value.sizes() != target.sizes() || value.scalar_type() != target.scalar_type()) return false;
  if (target.numel() == 0) return true;
  if (target.is_contiguous() && value.is_contiguous() && !value.is_conj() && !value.is_neg() && !target.is_conj() &&
      !target.is_neg()) {
    std::memcpy(const_cast<void*>(target.const_data_ptr()), value.const_data_ptr(),
                static_cast<std::size_t>(value.numel()) * value.element_size());
  } else {
    alias(target).copy_(value);
  }
  return true;
}

bool is_captured(c10::DeviceIndex device) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(device).stream(), &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

bool drain(c10::DeviceIndex device) { return marks.drain(c10::cuda::getCurrentCUDAStream(device).stream()) != 1; }

}  // namespace arena::values
