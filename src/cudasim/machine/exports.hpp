// The declarations of every API function that this library exports, and so the proof that each definition has the
// declared type: a definition that differs is an error of the compiler or an undefined symbol of the linker.
#pragma once

#include "abi/types.hpp"

#define CU_FUNCTION(name, version, symbol, stream, params) \
  extern "C" __attribute__((visibility("default"))) arena::cu::fn::symbol symbol;
#define CU_FUNCTION_13 CU_FUNCTION
#include "abi/functions.def"
#undef CU_FUNCTION_13
#undef CU_FUNCTION
