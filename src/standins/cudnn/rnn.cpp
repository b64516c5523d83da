// The weight buffer has the matrices of all layers first, then the biases. A layer has one set for each direction ("pseudo
// layer"): the input matrices of its gates, the recurrent ones, and the projection.
#include "standins/cudnn/rnn.hpp"

#include "standins/cudnn/cudnn.hpp"

namespace standins::cudnn {

namespace {

constexpr int kLstm = 2, kGru = 3;                           // cudnnRNNMode_t
constexpr int kBiasNone = 0, kBiasInput = 1, kBiasBoth = 2;  // cudnnRNNBiasMode_t
constexpr int kTraining = 1;                                 // cudnnForwardMode_t

void set_matrix(Word descriptor, const Network& network, const Part& part) {
  if (auto* const tensor = find<Tensor>(descriptor)) {
    tensor->set_packed(network.data_type, 0, {1, static_cast<int>(part.rows), static_cast<int>(part.columns)});
  }
}

Word address_of(Word buffer, const Network& network, const Part& part) {
  if (part.rows == 0 || buffer == 0) return 0;
  return buffer + static_cast<Word>(part.offset * size_of(network.data_type));
}

Recurrent pass_of(const Network& network, const Sequences& sequences, bool is_training) {
  const auto size = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  return {.gates = size(network.gates()),
          .layers = size(network.layers * network.directions),
          .hidden = size(network.hidden),
          .projected = size(network.projected),
          .steps = size(sequences.longest),
          .batch = size(sequences.batch),
          .element = size(size_of(network.data_type)),
          .weights = size(network.all_matrices() * size_of(network.data_type)),
          .is_training = is_training};
}

}  // namespace

std::int64_t Network::gates() const { return cell == kLstm ? 4 : cell == kGru ? 3 : 1; }

std::int64_t Network::biases() const { return bias == kBiasNone ? 0 : bias == kBiasBoth ? 2 : 1; }

std::int64_t Network::inputs_of(std::int64_t layer) const {
  if (layer > 0) return projected * directions;
  return skips_input ? 0 : input;
}

std::int64_t Network::matrices_of(std::int64_t layer) const {
  const std::int64_t projection = has_projection() ? projected * hidden : 0;
  return gates() * hidden * (inputs_of(layer) + projected) + projection;
}

std::int64_t Network::all_matrices() const {
  std::int64_t elements = 0;
  for (std::int64_t layer = 0; layer < layers; ++layer) elements += directions * matrices_of(layer);
  return elements;
}

std::int64_t Network::all_weights() const { return all_matrices() + layers * directions * gates() * biases() * hidden; }

Part Network::matrix(std::int64_t pseudo_layer, std::int64_t number) const {
  const std::int64_t layer = pseudo_layer / directions;
  Part part;
  for (std::int64_t before = 0; before < pseudo_layer; ++before) part.offset += matrices_of(before / directions);
  if (number < gates()) {
    part.offset += number * hidden * inputs_of(layer);
    part.columns = inputs_of(layer);
    part.rows = part.columns > 0 ? hidden : 0;
  } else if (number < 2 * gates()) {
    part.offset += gates() * hidden * inputs_of(layer) + (number - gates()) * hidden * projected;
    part.rows = hidden;
    part.columns = projected;
  } else if (number == 2 * gates() && has_projection()) {
    part.offset += gates() * hidden * (inputs_of(layer) + projected);
    part.rows = projected;
    part.columns = hidden;
  }
  return part;
}

Part Network::bias_vector(std::int64_t pseudo_layer, std::int64_t number) const {
  const bool is_input = number < gates();
  if (number >= 2 * gates() || biases() == 0) return {};
  if (bias != kBiasBoth && is_input != (bias == kBiasInput)) return {};
  const std::int64_t index = bias == kBiasBoth ? number : number % gates();
  return {
      .offset = all_matrices() + (pseudo_layer * gates() * biases() + index) * hidden, .rows = hidden, .columns = 1};
}

// (descriptor, algorithm, cell, bias, direction, input mode, type, precision, math, input, hidden, projected, layers, ...)
STANDIN_FUNCTION(cudnnSetRNNDescriptor_v8) {
  auto* const network = find<Network>(a0);
  if (network == nullptr || as_int(a9) < 1 || as_int(a10) < 1 || as_int(a11) < 0 || as_int(a12) < 1)
    return kBadArgument;
  network->cell = static_cast<int>(a2);
  network->bias = static_cast<int>(a3);
  network->directions = as_int(a4) == 1 ? 2 : 1;
  network->skips_input = as_int(a5) == 1;
  network->data_type = static_cast<int>(a6);
  network->input = as_int(a9);
  network->hidden = as_int(a10);
  network->projected = as_int(a11) > 0 ? as_int(a11) : as_int(a10);
  network->layers = as_int(a12);
  return network->projected <= network->hidden ? 0 : kBadArgument;
}

// (descriptor, type, layout, longest, batch, width, lengths, fill)
STANDIN_FUNCTION(cudnnSetRNNDataDescriptor) {
  auto* const sequences = find<Sequences>(a0);
  if (sequences == nullptr || as_int(a3) < 1 || as_int(a4) < 1 || as_int(a5) < 1) return kBadArgument;
  sequences->data_type = static_cast<int>(a1);
  sequences->longest = as_int(a3);
  sequences->batch = as_int(a4);
  sequences->width = as_int(a5);
  return 0;
}

STANDIN_FUNCTION(cudnnGetRNNWeightSpaceSize) {
  if (find_object(a0) == nullptr) return kNoHandle;
  const auto* const network = find<Network>(a1);
  if (network == nullptr || a2 == 0) return kBadArgument;
  write(a2, static_cast<std::size_t>(network->all_weights() * size_of(network->data_type)));
  return 0;
}

// (handle, network, mode, sequences, workspace size, reserve size)
STANDIN_FUNCTION(cudnnGetRNNTempSpaceSizes) {
  if (find_object(a0) == nullptr) return kNoHandle;
  const auto* const network = find<Network>(a1);
  const auto* const sequences = find<Sequences>(a3);
  if (network == nullptr || sequences == nullptr) return kBadArgument;
  const Recurrent pass = pass_of(*network, *sequences, as_int(a2) == kTraining);
  const auto directions = static_cast<std::uint64_t>(network->directions);
  write<std::size_t>(a4, workspace("CUDNN", rnn_workspace(pass, directions)));
  write<std::size_t>(a5, estimated("CUDNN", rnn_reserve(pass, directions)));
  return 0;
}

// (handle, network, pseudo layer, size, buffer, number, matrix descriptor, matrix, bias descriptor, bias)
STANDIN_FUNCTION(cudnnGetRNNWeightParams) {
  if (find_object(a0) == nullptr) return kNoHandle;
  const auto* const network = find<Network>(a1);
  if (network == nullptr || as_int(a2) < 0 || as_int(a2) >= network->layers * network->directions) return kBadArgument;
  if (a3 < static_cast<Word>(network->all_weights() * size_of(network->data_type))) return kTooSmall;
  const Part matrix = network->matrix(as_int(a2), as_int(a5));
  const Part bias = network->bias_vector(as_int(a2), as_int(a5));
  set_matrix(a6, *network, matrix);
  set_matrix(a8, *network, bias);
  write(a7, address_of(a4, *network, matrix));
  write(a9, address_of(a4, *network, bias));
  return 0;
}

}  // namespace standins::cudnn
