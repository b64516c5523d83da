// Failed requests for Python, and the arena.OutOfMemoryError of each. An error is built once, from the fields of a Failure and
// what only Python knows. Every function needs the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include "core/heap/account.hpp"

namespace arena {

struct RequestFailure {
  Failure failure;
  pybind11::object size = {};        // in bytes, if that is more than the failure can hold; otherwise null
  pybind11::handle error_type = {};  // what to raise; null for arena.OutOfMemoryError
};

// Fields of the error that Python adds.
struct ErrorDetails {
  pybind11::str moving = pybind11::str();
  pybind11::str line = pybind11::str();
  pybind11::tuple holders = pybind11::tuple();
};

// Runs no Python code: at the recursion limit there is no frame left for __init__, and the error must still be raised.
pybind11::object out_of_memory(const RequestFailure& failed, const ErrorDetails& details = {});

void raise(const pybind11::object& error);

}  // namespace arena
