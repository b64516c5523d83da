// All arenas of the process, for questions about an address of unknown origin. Closed arenas count while they have memory.
#pragma once

#include <memory>
#include <vector>

#include "core/arena/arena.hpp"

namespace arena::arenas {

void add(const std::shared_ptr<Arena>& arena);
std::vector<std::shared_ptr<Arena>> all();  // in a forked child, only the child's

}  // namespace arena::arenas
