// Recurrent networks: how their weights lie in one buffer, and how much memory a pass takes.
#pragma once

#include <cstdint>

#include "standins/common/objects.hpp"

namespace standins::cudnn {

// One matrix or bias in the weight buffer, in elements.
struct Part {
  std::int64_t offset = 0;
  std::int64_t rows = 0, columns = 0;  // 0 if there is none
};

struct Network : Object {
  int cell = 0;  // cudnnRNNMode_t: 0 and 1 are plain, 2 LSTM, 3 GRU
  int bias = 0;  // cudnnRNNBiasMode_t: none, of the input, both, of the recurrence
  int directions = 1;
  bool skips_input = false;
  int data_type = 0;
  std::int64_t input = 0, hidden = 0, projected = 0, layers = 0;

  std::int64_t gates() const;
  std::int64_t biases() const;  // for each gate
  std::int64_t inputs_of(std::int64_t layer) const;
  bool has_projection() const { return projected < hidden; }
  std::int64_t matrices_of(std::int64_t layer) const;  // elements of all matrices of one direction of a layer
  std::int64_t all_matrices() const;
  std::int64_t all_weights() const;
  Part matrix(std::int64_t pseudo_layer, std::int64_t number) const;
  Part bias_vector(std::int64_t pseudo_layer, std::int64_t number) const;
};

struct Sequences : Object {
  int data_type = 0;
  std::int64_t longest = 0, batch = 0, width = 0;
};

}  // namespace standins::cudnn
