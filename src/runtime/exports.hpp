// The declarations of every function that this library exports, and so the proof that each definition has the declared
// type: one that differs does not compile.
#pragma once

#include "abi/runtime/types.hpp"

#define RT_FUNCTION(result, name, twin, params, arguments) \
  extern "C" __attribute__((visibility("default"))) arena::rt::fn::name name;
#include "abi/runtime/functions.def"
#undef RT_FUNCTION
