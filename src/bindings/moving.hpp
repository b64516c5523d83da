// When live data may be moved: Moving for Python's booleans, and a moment at which no other thread launches work.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

#include "core/arena/arena.hpp"

namespace arena {

inline Moving moving_if(bool may_move) { return may_move ? Moving::kAllowed : Moving::kForbidden; }

// Finds a moment at which live data may be moved, or nothing. The caller must hold the GIL from then on until the data has
// moved, so that no thread that needs the GIL can launch work. `may_move` is a bool, or a function that returns a Standstill or
// None.
std::optional<QuiescenceCheck> find_moment(Arena& arena, const pybind11::object& may_move);

}  // namespace arena
