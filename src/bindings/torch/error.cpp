#include "bindings/torch/error.hpp"

#include <cxxabi.h>
#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <typeinfo>

#include "bindings/torch/old_strings.hpp"

namespace arena::torch {
namespace {

// Since 2.13, PyTorch exports a constructor of the class. Before, it is inherited and inline: then an error is constructed as its
// base, and made a c10::OutOfMemoryError by the table of its virtual functions. The class adds no fields, so all else is equal.
constexpr const char* kConstructor =
    "_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
constexpr const char* kBaseConstructor =
    "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
constexpr const char* kOldBaseConstructor = "_ZN3c105ErrorC1ENS_14SourceLocationESs";  // PyTorch before 2.7
constexpr const char* kTable = "_ZTVN3c1016OutOfMemoryErrorE";
constexpr const char* kBaseTable = "_ZTVN3c105ErrorE";
constexpr const char* kTypeName = "N3c1016OutOfMemoryErrorE";
constexpr const char* kBaseTypeName = "N3c105ErrorE";

constexpr SourceLocation kPlace = {.function = "arena_torch_alloc", .file = "arena", .line = 0};
constexpr std::size_t kMostBytes = 1024;  // of an exception object of PyTorch's: it takes some 130

using Construct = void (*)(void* self, SourceLocation place, std::string text);
using ConstructOld = ConstructFromOldString;

// A table of virtual functions, as the C++ ABI lays it out. Objects point to its third entry.
struct Table {
  std::ptrdiff_t offset_to_top;
  const std::type_info* type;
  void (*functions[1])();
};

struct TorchError {
  Construct construct = nullptr;
  ConstructOld construct_old = nullptr;  // if there is no `construct`
  const Table* constructed = nullptr;    // the table that the constructor gives
  const Table* table = nullptr;          // that of c10::OutOfMemoryError
};

void* find(const std::array<void*, 2>& libraries, const char* name) {
  for (void* library : libraries) {
    if (library == nullptr) continue;
    if (void* found = dlsym(library, name)) return found;
  }
  return nullptr;
}

bool is_table_of_the_class(const Table* table) {
  if (table == nullptr || table->offset_to_top != 0 || std::strcmp(table->type->name(), kTypeName) != 0) return false;
  const auto* type = dynamic_cast<const abi::__si_class_type_info*>(table->type);
  return type != nullptr && std::strcmp(type->__base_type->name(), kBaseTypeName) == 0;
}

// Empty if anything is not as expected.
TorchError find_torch_error() {
  const auto open = [](const char* name) { return dlopen(name, RTLD_NOLOAD | RTLD_NOW); };
  const std::array libraries = {open("libc10.so"), open("libc10_cuda.so")};
  TorchError found{.table = static_cast<const Table*>(find(libraries, kTable))};
  if (!is_table_of_the_class(found.table)) return {};
  found.constructed = found.table;
  found.construct = reinterpret_cast<Construct>(find(libraries, kConstructor));
  if (found.construct != nullptr) return found;
  found.constructed = static_cast<const Table*>(find(libraries, kBaseTable));
  found.construct = reinterpret_cast<Construct>(find(libraries, kBaseConstructor));
  found.construct_old = reinterpret_cast<ConstructOld>(find(libraries, kOldBaseConstructor));
  const bool is_known = found.constructed != nullptr && (found.construct != nullptr || found.construct_old != nullptr);
  return is_known ? found : TorchError{};
}

void construct(const TorchError& error, void* memory, const std::string& text) {
  if (error.construct != nullptr) {
    error.construct(memory, kPlace, text);
  } else {
    construct_from_old_string(error.construct_old, memory, kPlace, text.c_str());
  }
}

// Whether the object in this memory is a c10::OutOfMemoryError now.
bool become_out_of_memory(const TorchError& error, void* memory) {
  const void* functions = nullptr;
  std::memcpy(&functions, memory, sizeof functions);
  if (functions != error.constructed->functions) return false;
  functions = error.table->functions;
  std::memcpy(memory, &functions, sizeof functions);
  return true;
}

// Its first base is std::exception, whose destructor is virtual.
void destroy(void* error) { static_cast<std::exception*>(error)->~exception(); }

// As PyTorch writes sizes.
std::string size_of_request(std::uint64_t bytes) {
  constexpr std::array units = {"KiB", "MiB", "GiB"};
  if (bytes <= 1024) return std::to_string(bytes) + " bytes";
  double size = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; size > 1024 && unit + 1 < units.size(); ++unit) size /= 1024;
  char text[64];
  std::snprintf(text, sizeof text, "%.2f %s", size, units[unit]);
  return text;
}

}  // namespace

void throw_out_of_memory(std::uint64_t requested, const std::string& why) {
  static const TorchError error = find_torch_error();
  const std::string text = "CUDA out of memory. Tried to allocate " + size_of_request(requested) + ".\n" + why;
  if (error.table == nullptr) throw std::runtime_error(text);
  void* memory = abi::__cxa_allocate_exception(kMostBytes);
  try {
    construct(error, memory, text);
  } catch (...) {
    abi::__cxa_free_exception(memory);
    throw std::runtime_error(text);
  }
  if (!become_out_of_memory(error, memory)) {
    destroy(memory);
    abi::__cxa_free_exception(memory);
    throw std::runtime_error(text);
  }
  abi::__cxa_throw(memory, const_cast<std::type_info*>(error.table->type), &destroy);
}

}  // namespace arena::torch
