// Snapshots and figures as Python objects. Every function needs the GIL, and none may be called with the arena's lock held:
// making objects may run anything.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "core/heap/account.hpp"

namespace arena {

std::int64_t steady_now();  // nanoseconds

// `now` is when the snapshot was taken, by steady_now().
pybind11::dict dict_of(const Snapshot& snapshot, std::int64_t now);

}  // namespace arena
