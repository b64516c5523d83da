// Reads a stream that was passed as an object, for the common kinds. arena._util.arguments.as_stream() reads the others.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

#include "abi/types.hpp"

namespace arena {

// Nothing if the object is of another kind, or no stream at all. Runs the object's own code, which may do anything; if that
// raises, returns nothing and leaves the exception set.
std::optional<cu::Stream> read_stream(PyObject* given);

// The stream that a number stands for; nothing if it is no int, or out of range. Leaves no exception set.
std::optional<cu::Stream> read_stream_number(PyObject* number);

// Whether an object keeps its stream alive. A number does not, and neither does a wrapper of another library's stream. Throws
// what the object's own code raises.
bool owns_stream(PyObject* given);

}  // namespace arena
