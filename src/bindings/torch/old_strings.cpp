// This file alone is compiled with libstdc++'s old strings: nothing that has a string may be included or passed on.
#define _GLIBCXX_USE_CXX11_ABI 0
#include "bindings/torch/old_strings.hpp"

#include <string>

namespace arena::torch {

void construct_from_old_string(ConstructFromOldString construct, void* self, SourceLocation place, const char* text) {
  std::string string = text;  // PyTorch copies it, and counts the references
  construct(self, place, &string);
}

}  // namespace arena::torch
