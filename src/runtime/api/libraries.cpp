// Device code that a program loads itself.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

#include "runtime/exports.hpp"
#include "runtime/kernels.hpp"
#include "runtime/state.hpp"

using namespace cudart;

CUDART_EXPORT Error cudaLibraryLoadData(cu::Library* library, const void* code, unsigned* jit_options,
                                        void** jit_values, unsigned jit_count, unsigned* options, void** values,
                                        unsigned count) {
  return with_context([&](const Driver& driver) {
    return driver.cuLibraryLoadData(library, code, jit_options, jit_values, jit_count, options, values, count);
  });
}

CUDART_EXPORT Error cudaLibraryLoadFromFile(cu::Library* library, const char* path, unsigned* jit_options,
                                            void** jit_values, unsigned jit_count, unsigned* options, void** values,
                                            unsigned count) {
  if (path == nullptr) return remember(Error::kInvalidValue);
  std::error_code error;
  std::ifstream file(path, std::ios::binary);
  // A directory can be opened, but to read it throws.
  if (!file || std::filesystem::is_directory(path, error)) return remember(Error::kFileNotFound);
  std::vector<char> code{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  code.push_back('\0');  // PTX is text
  return cudaLibraryLoadData(library, code.data(), jit_options, jit_values, jit_count, options, values, count);
}

CUDART_EXPORT Error cudaLibraryUnload(cu::Library library) {
  return with_context([&](const Driver& driver) { return driver.cuLibraryUnload(library); });
}

CUDART_EXPORT Error cudaLibraryGetKernel(cu::Kernel* kernel, cu::Library library, const char* name) {
  return with_context([&](const Driver& driver) {
    const cu::Result result = driver.cuLibraryGetKernel(kernel, library, name);
    if (result == cu::Result::kSuccess) kernels().add_handle(*kernel);
    return result;
  });
}

CUDART_EXPORT Error cudaLibraryGetKernelCount(unsigned* count, cu::Library library) {
  return with_context([&](const Driver& driver) { return driver.cuLibraryGetKernelCount(count, library); });
}

CUDART_EXPORT Error cudaLibraryGetGlobal(void** ptr, std::size_t* size, cu::Library library, const char* name) {
  return with_context([&](const Driver& driver) { return driver.cuLibraryGetGlobal(ptr, size, library, name); });
}

CUDART_EXPORT Error cudaLibraryGetManaged(void** ptr, std::size_t* size, cu::Library library, const char* name) {
  return with_context([&](const Driver& driver) { return driver.cuLibraryGetManaged(ptr, size, library, name); });
}
