// Declares every API function that this library exports. A definition with a different type is therefore a compiler
// error or an undefined symbol.
#pragma once

#include "abi/types.hpp"

#define CU_FUNCTION(name, version, symbol, stream, params) \
  extern "C" __attribute__((visibility("default"))) arena::cu::fn::symbol symbol;
#define CU_FUNCTION_13 CU_FUNCTION
#include "abi/functions.def"
#undef CU_FUNCTION_13
#undef CU_FUNCTION
