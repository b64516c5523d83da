// Tensors on the simulated device, seen from the host: its memory is host memory at the same addresses.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "marks.hpp"

namespace arena::values {

// Whether a tensor is a plain one on the device, whose bytes can be computed on the host.
bool is_plain(const at::Tensor& tensor);

// A CPU tensor on the memory of a tensor of the device.
at::Tensor alias(const at::Tensor& tensor);

Knowledge knowledge(const at::Tensor& tensor);

// Marks all elements. Where rows are many and far apart, unknown covers what lies between them, too.
void mark(const at::Tensor& tensor, State state);

// Which elements are known, as a CPU tensor of bools; and the reverse: elements that are not keep their bytes.
at::Tensor known_elements(const at::Tensor& tensor);
void mark_elements(const at::Tensor& tensor, const at::Tensor& known);

// Makes what was never computed zeros, before its bytes are read.
void settle(const at::Tensor& tensor);

// A result with finite numbers in the place of infinite ones that are not known: they follow from zeros in the place of other
// values, and programs check theirs. Negative ones still mask.
at::Tensor finite(const at::Tensor& value, const std::optional<at::Tensor>& known);

// Writes a result that was computed on the host. False if its shape or type is another.
bool store(const at::Tensor& target, const at::Tensor& value);

// Whether the current stream of a device is being captured.
bool is_captured(c10::DeviceIndex device);

// Waits for what is queued in the current stream of a device. False if it is being captured: then nothing can be computed.
bool drain(c10::DeviceIndex device);

}  // namespace arena::values
