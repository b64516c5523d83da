// Which lines of Python requested memory. When off, this costs one check of a flag. When on, the frames of the calling thread
// are walked to the first that belong to the program: frames of arena and of CuPy are skipped, and the walk ends where the
// program began.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>

namespace arena::lines {

// The id of the lines that led to a call, innermost first; 0 for none.
using Id = std::uint32_t;

extern std::atomic<int> depth;  // how many lines are remembered; 0 is off

Id find(std::size_t wanted);  // at most so many lines; needs the GIL

inline Id current() {
  const int wanted = depth.load(std::memory_order_relaxed);
  return wanted == 0 ? 0 : find(static_cast<std::size_t>(wanted));
}

// The id of lines of a recorded run.
Id number_of(const pybind11::tuple& lines);

// As a tuple of arena's Line, innermost first.
pybind11::tuple frames(Id id);

// The class of the pieces of a snapshot.
pybind11::handle piece_class();

}  // namespace arena::lines
