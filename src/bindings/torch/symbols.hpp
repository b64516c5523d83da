// The names of functions in loaded libraries, by address. Exported ones come from the dynamic linker. Others come from the
// symbol table in the library's file, if it was not stripped, and only if the file agrees with the linker on every exported
// name: otherwise it is another build of the library than the one in memory.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

namespace arena::torch {

using NamesByAddress = std::unordered_map<const void*, std::vector<std::string>>;

// The names of each function whose names can be found, mangled. Identical functions may share an address.
NamesByAddress find_names(const std::vector<const void*>& functions);

// Whether the library that has an address exports a function of this name.
bool exports_function(const void* address, const char* name);

// An exported object, such as a virtual table, that starts at this address; an empty name if there is none.
struct ExportedObject {
  std::string name;
  std::size_t size = 0;
};
ExportedObject find_exported_object(const void* address);

}  // namespace arena::torch
