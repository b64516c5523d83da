// Reads the stream that somebody passes as an object, for the common kinds: as_stream() of arena._util.arguments in C.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

#include "abi/types.hpp"

namespace arena {

// Nothing if it is of another kind, or no stream at all: as_stream() knows, or raises. Runs the object's own code, which may
// do anything; if that raises, nothing, and the exception is set.
std::optional<cu::Stream> read_stream(PyObject* given);

// Before the first: when the module is made.
void intern_stream_names();

}  // namespace arena
