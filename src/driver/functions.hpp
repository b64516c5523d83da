// The table of driver functions that the arena calls, filled from a library at run time. Members are named as in the
// driver's documentation, without version suffixes.
#pragma once

#include <string>
#include <vector>

#include "abi/types.hpp"
#include "driver/library.hpp"

namespace arena {

struct Functions {
#define ARENA_NEEDS(name, version, symbol, need) cu::fn::symbol* name = nullptr;
#include "driver/needed.def"
#undef ARENA_NEEDS
};

struct FoundFunctions {
  Functions functions;
  std::vector<std::string> missing;  // required ones, as "cuMemCreate (version 10020)"
};

FoundFunctions find_functions(const Library& library);

}  // namespace arena
