// Calls a constructor of PyTorch before 2.7, which is compiled with the strings that libstdc++ had before C++11.
#pragma once

#include <cstdint>

namespace arena::torch {

// As PyTorch declares it: where an error was made.
struct SourceLocation {
  const char* function;
  const char* file;
  std::uint32_t line;
};

// Takes such a string; callers cannot name its type. A string is passed by its address, whichever kind it is.
using ConstructFromOldString = void (*)(void* self, SourceLocation place, void* string);

void construct_from_old_string(ConstructFromOldString construct, void* self, SourceLocation place, const char* text);

}  // namespace arena::torch
