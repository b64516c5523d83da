#include "coalesce.hpp"

#include <ATen/ops/_coalesce.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/zeros.h>

#include <optional>

#include "expecting.hpp"
#include "host.hpp"
#include "memory.hpp"
#include "notes.hpp"

namespace arena::values {
namespace {

constexpr std::int64_t kMostIndices = std::int64_t{64} << 20;

bool is_known(const at::Tensor& tensor) { return is_plain(tensor) && knowledge(tensor) == Knowledge::kAll; }

// The sum, if its indices are known. Of values that are not, only the shape counts.
std::optional<at::Tensor> sum_of(const at::Tensor& self) {
  const at::Tensor indices = self._indices(), values = self._values();
  if (indices.numel() > kMostIndices || values.numel() > kMostIndices || !is_known(indices) || !is_plain(values) ||
      !drain(self.device().index())) {
    return std::nullopt;
  }
  const bool with_values = is_known(values);
  const at::Tensor terms =
      with_values ? alias(values) : at::zeros({self._nnz()}, at::TensorOptions().dtype(values.dtype()));
  auto shape = self.sizes().vec();
  if (!with_values) shape.resize(static_cast<std::size_t>(self.sparse_dim()));
  return at::_coalesce(at::_sparse_coo_tensor_unsafe(alias(indices), terms, shape));
}

void put(const at::Tensor& target, const at::Tensor& value) {
  if (is_plain(target)) mark(target, store(target, value) ? State::kKnown : State::kUnknown);
}

}  // namespace

void Coalescing::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const {
  const at::Tensor self = stack->back().toTensor();
  const std::int64_t most = self._nnz();
  std::optional<at::Tensor> sum;
  std::int64_t count = most, id = -1;
  if (most > 1) {  // without a second element there is nothing to add, and PyTorch clones the tensor
    sum = sum_of(self);
    if (sum) {
      count = sum->_nnz();
    } else if (!Quiet::is_on()) {
      count = std::max<std::int64_t>(1, assumed_count("aten::_coalesce", most, id));
    }
  }
  {
    const Launching launching;
    const Expecting expecting(count);
    const Quiet quiet;
    original_.callBoxed(op, keys, stack);
  }
  if (most < 2) return;
  const at::Tensor result = stack->back().toTensor();
  put(result._indices(), sum ? sum->_indices() : at::Tensor());
  put(result._values(), sum && is_known(self._values()) ? sum->_values() : at::Tensor());
  if (id >= 0) note_result(result._values(), id, count, most);
}

}  // namespace arena::values
