#include "runtime/kernels.hpp"

namespace cudart {
namespace {

// What the compiler puts around device code, as in the toolkit's fatbinary_section.h.
struct FatBinaryWrapper {
  int magic;
  int version;
  const void* data;
  void* more;
};

}  // namespace

Kernels& kernels() {
  static auto* const all = new Kernels;
  return *all;
}

FatBinary* Kernels::add_binary(const void* wrapper) {
  return new FatBinary{.image = static_cast<const FatBinaryWrapper*>(wrapper)->data};
}

void Kernels::remove_binary(FatBinary* binary) {
  const std::lock_guard lock(mutex_);
  std::erase_if(kernels_, [&](const auto& entry) { return entry.second.binary == binary; });
  std::erase_if(variables_, [&](const auto& entry) { return entry.second.binary == binary; });
  delete binary;  // its library stays loaded: this happens while the process exits, when the driver may be gone
}

void Kernels::add_kernel(FatBinary* binary, const void* host, const char* name) {
  const std::lock_guard lock(mutex_);
  kernels_[host] = {.binary = binary, .name = name, .handle = nullptr};
}

void Kernels::add_variable(FatBinary* binary, const void* host, const char* name, std::size_t size) {
  const std::lock_guard lock(mutex_);
  variables_[host] = {.binary = binary, .name = name, .size = size, .replaced = {}};
}

void Kernels::add_handle(cu::Kernel kernel) {
  const std::lock_guard lock(mutex_);
  handles_.insert(kernel);
}

void Kernels::forget_memory(int device) {
  const std::lock_guard lock(mutex_);
  for (auto& [host, variable] : variables_) variable.replaced.erase(device);
}

bool Kernels::recover(const Driver& driver, const void* function) {
  const std::lock_guard lock(mutex_);
  const auto it = kernels_.find(function);
  return it != kernels_.end() && forget_if_gone(driver, *it->second.binary);
}

// True if the driver no longer knows the library. It is loaded again when it is next needed.
bool Kernels::forget_if_gone(const Driver& driver, FatBinary& binary) {
  unsigned count = 0;
  if (binary.library == nullptr) return false;
  if (driver.cuLibraryGetKernelCount(&count, binary.library) != cu::Result::kInvalidHandle) return false;
  binary.library = nullptr;
  for (auto& [host, kernel] : kernels_) {
    if (kernel.binary == &binary) kernel.handle = nullptr;
  }
  for (auto& [host, variable] : variables_) {
    if (variable.binary == &binary) variable.replaced.clear();
  }
  return true;
}

Error Kernels::load(const Driver& driver, FatBinary& binary) {
  forget_if_gone(driver, binary);
  if (binary.library != nullptr) return Error::kSuccess;
  return static_cast<Error>(
      driver.cuLibraryLoadData(&binary.library, binary.image, nullptr, nullptr, 0u, nullptr, nullptr, 0u));
}

Error Kernels::find(const Driver& driver, const void* function, cu::Kernel* kernel) {
  const std::lock_guard lock(mutex_);
  const auto it = kernels_.find(function);
  if (it == kernels_.end()) {
    if (handles_.count(function) == 0) return Error::kInvalidDeviceFunction;
    *kernel = static_cast<cu::Kernel>(const_cast<void*>(function));
    return Error::kSuccess;
  }
  Kernel& found = it->second;
  if (found.handle == nullptr) {
    if (const Error error = load(driver, *found.binary); error != Error::kSuccess) return error;
    const cu::Result result = driver.cuLibraryGetKernel(&found.handle, found.binary->library, found.name);
    if (result == cu::Result::kNotFound) return Error::kInvalidDeviceFunction;
    if (result != cu::Result::kSuccess) return static_cast<Error>(result);
    handles_.insert(found.handle);
  }
  *kernel = found.handle;
  return Error::kSuccess;
}

Error Kernels::find_variable(const Driver& driver, const void* host, cu::DevicePtr* address, std::size_t* size) {
  const std::lock_guard lock(mutex_);
  const auto it = variables_.find(host);
  if (it == variables_.end()) return Error::kInvalidSymbol;
  Variable& found = it->second;
  if (const Error error = load(driver, *found.binary); error != Error::kSuccess) return error;
  *size = 0;
  const cu::Result result = driver.cuLibraryGetGlobal(address, size, found.binary->library, found.name);
  if (result == cu::Result::kNotFound) return Error::kInvalidSymbol;
  if (result != cu::Result::kSuccess) return static_cast<Error>(result);
  // A simulated driver does not unpack compressed code, and so does not know sizes. The compiler registered them.
  const Error error = *size < found.size ? replace(driver, found, address) : Error::kSuccess;
  *size = found.size;
  return error;
}

Error Kernels::replace(const Driver& driver, Variable& variable, cu::DevicePtr* address) {
  int device = 0;
  if (const cu::Result result = driver.cuCtxGetDevice(&device); result != cu::Result::kSuccess) {
    return static_cast<Error>(result);
  }
  const auto known = variable.replaced.find(device);
  if (known != variable.replaced.end()) {
    *address = known->second;
    return Error::kSuccess;
  }
  cu::Result result = driver.cuMemAlloc_v2(address, variable.size);
  if (result != cu::Result::kSuccess) return static_cast<Error>(result);
  result = driver.cuMemsetD8_v2(*address, 0u, variable.size);
  if (result == cu::Result::kSuccess) {
    variable.replaced[device] = *address;
  } else {
    driver.cuMemFree_v2(*address);
  }
  return static_cast<Error>(result);
}

}  // namespace cudart
