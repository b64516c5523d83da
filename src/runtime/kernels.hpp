// Kernels and device variables that compiled code registered, by the host address that stands for them. The module
// that holds one is given to the driver when it is first used.
#pragma once

#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "runtime/driver.hpp"

namespace cudart {

// Device code of one object file.
struct FatBinary {
  const void* image = nullptr;
  cu::Library library = nullptr;  // once it is loaded
};

class Kernels {
 public:
  FatBinary* add_binary(const void* wrapper);
  void remove_binary(FatBinary* binary);
  void add_kernel(FatBinary* binary, const void* host, const char* name);
  void add_variable(FatBinary* binary, const void* host, const char* name, std::size_t size);
  // A kernel that the program got as a handle: it may be launched like those that were registered.
  void add_handle(cu::Kernel kernel);

  // What a program means by a function: the address of a registered one, or a handle.
  Error find(const Driver& driver, const void* function, cu::Kernel* kernel);
  // After the driver refused a handle: true if a simulated driver was reset, and so the function has to be found again.
  bool recover(const Driver& driver, const void* function);
  // After cudaDeviceReset: memory of ours on that device is gone.
  void forget_memory(int device);
  // Where a registered variable is, on the current device.
  Error find_variable(const Driver& driver, const void* host, cu::DevicePtr* address, std::size_t* size);

 private:
  struct Kernel {
    FatBinary* binary = nullptr;
    const char* name = nullptr;  // in the binary's own data
    cu::Kernel handle = nullptr;
  };
  struct Variable {
    FatBinary* binary = nullptr;
    const char* name = nullptr;
    std::size_t size = 0;
    std::unordered_map<int, cu::DevicePtr> replaced;  // by device: memory of ours, where the driver's is too small
  };
  Error load(const Driver& driver, FatBinary& binary);
  bool forget_if_gone(const Driver& driver, FatBinary& binary);
  Error replace(const Driver& driver, Variable& variable, cu::DevicePtr* address);

  std::mutex mutex_;
  std::unordered_map<const void*, Kernel> kernels_;
  std::unordered_map<const void*, Variable> variables_;
  std::unordered_set<const void*> handles_;
};

// Never destroyed: object files unregister while the process exits.
Kernels& kernels();

}  // namespace cudart
