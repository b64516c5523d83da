#include "bindings/torch/error.hpp"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <typeinfo>

namespace arena::torch {
namespace {

// As PyTorch declares it: where an error was made.
struct SourceLocation {
  const char* function;
  const char* file;
  std::uint32_t line;
};

constexpr std::size_t kMostBytes = 1024;  // of an exception object of PyTorch's: it takes some 200
constexpr const char* kConstructor =
    "_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
constexpr const char* kTypeInfo = "_ZTIN3c1016OutOfMemoryErrorE";

struct TorchError {
  void (*construct)(void* self, SourceLocation place, std::string text) = nullptr;
  std::type_info* type = nullptr;
};

TorchError find_torch_error() {
  void* library = dlopen("libc10.so", RTLD_NOLOAD | RTLD_NOW);
  if (library == nullptr) return {};
  TorchError found;
  found.construct = reinterpret_cast<decltype(found.construct)>(dlsym(library, kConstructor));
  found.type = static_cast<std::type_info*>(dlsym(library, kTypeInfo));
  return found.construct != nullptr && found.type != nullptr ? found : TorchError{};
}

// Its first base is std::exception, whose destructor is virtual.
void destroy(void* error) { static_cast<std::exception*>(error)->~exception(); }

}  // namespace

void throw_out_of_memory(const std::string& text) {
  const TorchError error = find_torch_error();
  if (error.construct == nullptr) throw std::runtime_error(text);
  void* memory = abi::__cxa_allocate_exception(kMostBytes);
  try {
    error.construct(memory, {.function = "arena_torch_alloc", .file = "arena", .line = 0}, text);
  } catch (...) {
    abi::__cxa_free_exception(memory);
    throw std::runtime_error(text);
  }
  abi::__cxa_throw(memory, error.type, &destroy);
}

}  // namespace arena::torch
