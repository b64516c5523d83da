// Where requests for memory come from: the framework that passes them on, and the lines of Python. While lines are off, this
// costs one check of a flag. While they are on, the frames of the calling thread are walked to the first that belong to the
// program: frames of arena and of frameworks are skipped, and the walk ends where the program began.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>
#include <string_view>

#include "core/types.hpp"

namespace arena::lines {

enum class Framework : std::uint8_t { kNone, kCupy, kTorch, kNumba, kCudaCore, kRmm };
// By number. The empty name stands for requests of the program itself.
inline constexpr std::string_view kFrameworks[] = {"", "CuPy", "PyTorch", "Numba", "cuda.core", "RMM"};
static_assert(std::size(kFrameworks) <= kFirstLine);

// The id of a framework and the lines that led to its call, innermost first; of a framework alone, its number.
using Id = Line;

extern std::atomic<int> depth;  // how many lines are remembered; 0 is off

Id find(std::size_t wanted, Framework framework);  // at most so many lines; needs the GIL

inline Id current(Framework framework) {
  const int wanted = depth.load(std::memory_order_relaxed);
  return wanted == 0 ? static_cast<Id>(framework) : find(static_cast<std::size_t>(wanted), framework);
}

// The framework with this name. Throws UsageError if there is none.
Framework framework_named(std::string_view name);
std::string_view framework_of(Id id);

// The id of a framework and lines of a recorded run.
Id number_of(const pybind11::tuple& lines, Framework framework);

// As a tuple of arena's Line, innermost first.
pybind11::tuple frames(Id id);

// The class of the pieces of a snapshot.
pybind11::handle piece_class();

}  // namespace arena::lines
