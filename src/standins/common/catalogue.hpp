// What the real libraries ask for as workspace, as far as anyone knows: from the least to the most, and what is likely.
// Each rule has its source beside it. Where a library can be asked itself (cudnn/planner.hpp), none of this is used.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace standins {

struct Estimate {  // bytes
  std::uint64_t low = 0, likely = 0, high = 0;
};

// Of sizes that no source says anything about: what a textbook algorithm needs, nothing, or twice that.
inline Estimate textbook(std::uint64_t bytes) { return {.low = 0, .likely = bytes, .high = 2 * bytes}; }

// The largest prime factor of a length.
inline std::int64_t largest_factor(std::int64_t length) {
  std::int64_t largest = 1;
  for (std::int64_t factor = 2; factor * factor <= length; ++factor) {
    for (; length % factor == 0; length /= factor) largest = factor;
  }
  return std::max(largest, length);
}

// A transform of cuFFT: its data are `bytes` as complex numbers.
struct Transform {
  std::vector<std::int64_t> lengths;
  std::uint64_t bytes = 0;
  bool is_real = false;  // on one side, so that half of the complex numbers may do
};

// NVIDIA's guide ("cuFFT estimated size of work area", https://docs.nvidia.com/cuda/cufft): lengths of 2, 3, 5 and 7 are the
// best; large primes may need up to eight times the work area of a power of two of similar size.
//
// Readings of more dimensions than one are exactly the size of the data, 15 of them with factors of 2 to 13:
// https://github.com/arrayfire/arrayfire/issues/1443, https://github.com/JuliaGPU/CUDA.jl/issues/894 (two and three
// dimensions), https://github.com/cupy/cupy/issues/5199. Of one dimension there is none, and what a single kernel does may
// need nothing (nvmath.fft.estimate_workspace_size, https://docs.nvidia.com/cuda/nvmath-python). From 128 on, a prime factor
// takes Bluestein's algorithm: two convolutions of at least twice the length.
inline Estimate fft_work_area(const Transform& transform) {
  std::int64_t largest = 1;
  for (const std::int64_t length : transform.lengths) largest = std::max(largest, largest_factor(length));
  const std::uint64_t bytes = transform.bytes;
  if (largest > 127) return {.low = bytes, .likely = 4 * bytes, .high = 8 * bytes};
  const std::uint64_t low = transform.lengths.size() == 1 ? 0 : transform.is_real ? bytes / 2 : bytes;
  return {.low = low, .likely = bytes, .high = largest > 13 ? 8 * bytes : bytes};
}

// The operands of a convolution.
struct Convolved {
  std::uint64_t bytes = 0;
  bool is_half = false;        // of 16 bits
  bool channels_last = false;  // how the channels of the first operand lie
};

// cuDNN, where the real one cannot be asked. cuDNN 9.26 was asked for the first choice of its heuristics for 23 shapes,
// three types and two layouts, forward and backward, on 8 cards from V100 to RTX 5090: 2,596 plans. Kernels for tensor
// cores want channels last, and operands that lie otherwise are copied; Volta's want channels first. The rule says within
// 1 MiB what 64 % of the plans ask for, and 99.3 % ask for at most twice the operands.
inline Estimate convolution_workspace(const Convolved& convolved, int compute_capability) {
  const bool is_volta = compute_capability < 75;
  const bool has_tf32 = compute_capability >= 80;
  const bool is_server = compute_capability >= 90 && compute_capability < 120;
  bool copies = false;
  if (convolved.is_half) {
    copies = convolved.channels_last == is_volta;
  } else {
    copies = has_tf32 && !(convolved.channels_last && is_server);
  }
  return {.low = 0, .likely = copies ? convolved.bytes : 0, .high = 2 * convolved.bytes};
}

// A pass of a recurrent network. Sizes but `weights` and `element` are numbers of elements.
struct Recurrent {
  std::uint64_t gates = 1;   // of a cell: 4 of an LSTM, 3 of a GRU, otherwise 1
  std::uint64_t layers = 1;  // those of both directions
  std::uint64_t hidden = 0, projected = 0;
  std::uint64_t steps = 0, batch = 0;
  std::uint64_t element = 4;  // bytes
  std::uint64_t weights = 0;  // bytes of all matrices
  bool is_training = false;
};

// Readings of cuDNN on a P100: https://github.com/pytorch/pytorch/issues/2895. A network of 4 layers of 320, 123 inputs (which
// follow from the numbers of parameters there) kept 23 numbers for each step, sequence and hidden unit as an LSTM, and 27 as
// a GRU, for 25,000 steps of all sequences: 5 and 6 for each layer, and the inputs of all but the first. An LSTM needs no
// less than its gates and its cell.
inline Estimate rnn_reserve(const Recurrent& rnn, std::uint64_t directions) {
  if (!rnn.is_training) return {};
  const std::uint64_t unit = rnn.steps * rnn.batch * rnn.element;
  const std::uint64_t least = rnn.layers * (rnn.gates + 1) * rnn.hidden * unit;
  const std::uint64_t of_cell = rnn.gates == 3 ? 6 : rnn.gates + 1;
  const std::uint64_t inputs = (rnn.layers - directions) * rnn.projected;
  const std::uint64_t likely = (rnn.layers * of_cell * rnn.hidden + inputs) * unit;
  return {.low = least, .likely = likely, .high = likely + likely / 2};
}

// The same readings: a copy of the matrices, and 11 (LSTM) or 8 (GRU) numbers for each sequence, hidden unit and layer, however
// many steps there are. That is in training; otherwise nothing holds the gates of a layer for all steps but the workspace.
inline Estimate rnn_workspace(const Recurrent& rnn, std::uint64_t directions) {
  const std::uint64_t of_cell = rnn.gates == 4 ? 11 : rnn.gates == 3 ? 8 : 4;
  const std::uint64_t in_training = rnn.weights + rnn.layers * of_cell * rnn.batch * rnn.hidden * rnn.element;
  if (rnn.is_training) return {.low = 0, .likely = in_training, .high = 2 * in_training};
  const std::uint64_t sequence =
      rnn.steps * rnn.batch * directions * (rnn.gates * rnn.hidden + rnn.projected) * rnn.element;
  return {.low = 0, .likely = in_training + sequence, .high = 2 * (in_training + sequence)};
}

}  // namespace standins
