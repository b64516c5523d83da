// Which lines of Python asked for memory. Off, it costs one look at a flag. On, the frames of the calling thread are
// walked to the first that are the program's own: frames of arena and of CuPy are passed over, and the walk ends where the
// program began.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>

namespace arena::lines {

// A number for the lines that a call came through, innermost first; 0 for none.
using Id = std::uint32_t;

extern std::atomic<int> depth;  // how many lines are remembered; 0: off

Id find(std::size_t wanted);  // so many lines at the most; with the GIL

inline Id current() {
  const int wanted = depth.load(std::memory_order_relaxed);
  return wanted == 0 ? 0 : find(static_cast<std::size_t>(wanted));
}

// The number of lines that come from elsewhere: of a recorded run.
Id number_of(const pybind11::tuple& lines);

// As a tuple of arena's Line, innermost first.
pybind11::tuple frames(Id id);

// The class of the pieces of a snapshot.
pybind11::handle piece_class();

}  // namespace arena::lines
