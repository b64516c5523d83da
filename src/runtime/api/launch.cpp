// Launches: what compiled code calls to register and start its kernels, and what programs ask about them.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "runtime/exports.hpp"
#include "runtime/kernels.hpp"
#include "runtime/state.hpp"

using namespace cudart;

namespace {

// Runs `body` with a kernel of the program's.
template <typename Body>
Error with_kernel(const void* function, const Body& body) {
  return with_context([&](const Driver& driver) {
    const auto attempt = [&] {
      cu::Kernel kernel = nullptr;
      const Error error = kernels().find(driver, function, &kernel);
      return error == Error::kSuccess ? error_of(body(driver, kernel)) : error;
    };
    const Error error = attempt();
    const bool is_gone = error == Error::kInvalidResourceHandle && kernels().recover(driver, function);
    return is_gone ? attempt() : error;
  });
}

// The driver takes a kernel wherever it takes a function.
cu::Function as_function(cu::Kernel kernel) { return reinterpret_cast<cu::Function>(kernel); }

// The runtime has a name of its own for a grid, a block or shared memory that the device cannot have.
Error launch_error(cu::Result result) {
  return result == cu::Result::kInvalidValue ? Error::kInvalidConfiguration : error_of(result);
}

// Sizes that the driver's parameter cannot hold stay larger than any device accepts.
unsigned shared_bytes(std::size_t size) {
  return static_cast<unsigned>(std::min<std::size_t>(size, std::numeric_limits<unsigned>::max()));
}

Error launch(const Driver& driver, cu::Kernel kernel, const LaunchShape& shape, void** arguments) {
  return launch_error(driver.cuLaunchKernel(as_function(kernel), shape.grid.x, shape.grid.y, shape.grid.z,
                                            shape.block.x, shape.block.y, shape.block.z, shared_bytes(shape.shared),
                                            stream_for(shape.stream), arguments, nullptr));
}

cu::LaunchConfig driver_config(const rt::LaunchConfig& config) {
  return {.grid_x = config.grid.x,
          .grid_y = config.grid.y,
          .grid_z = config.grid.z,
          .block_x = config.block.x,
          .block_y = config.block.y,
          .block_z = config.block.z,
          .shared_bytes = shared_bytes(config.shared),
          .stream = stream_for(config.stream),
          .attributes = static_cast<cu::LaunchAttribute*>(config.attributes),
          .attribute_count = config.attribute_count};
}

Error read_attributes(const Driver& driver, cu::Kernel kernel, rt::FuncAttributes& out) {
  using enum cu::FunctionAttribute;
  int device = 0;
  if (const cu::Result result = driver.cuCtxGetDevice(&device); result != cu::Result::kSuccess) return error_of(result);
  cu::Result first = cu::Result::kSuccess;
  const auto get = [&](cu::FunctionAttribute attribute) {
    int value = 0;
    const cu::Result result = driver.cuKernelGetAttribute(&value, attribute, kernel, device);
    if (first == cu::Result::kSuccess) first = result;
    return value;
  };
  std::memset(static_cast<void*>(&out), 0, sizeof out);
  out.shared_size = static_cast<std::size_t>(get(kSharedSize));
  out.const_size = static_cast<std::size_t>(get(kConstSize));
  out.local_size = static_cast<std::size_t>(get(kLocalSize));
  out.max_threads_per_block = get(kMaxThreadsPerBlock);
  out.registers = get(kRegisters);
  out.ptx_version = get(kPtxVersion);
  out.binary_version = get(kBinaryVersion);
  out.cache_mode_ca = get(kCacheModeCa);
  out.max_dynamic_shared_size = get(kMaxDynamicShared);
  out.preferred_carveout = get(kCarveout);
  out.cluster_dim_must_be_set = get(kClusterSizeMustBeSet);
  out.required_cluster_width = get(kClusterWidth);
  out.required_cluster_height = get(kClusterHeight);
  out.required_cluster_depth = get(kClusterDepth);
  out.cluster_scheduling_policy = get(kClusterScheduling);
  out.non_portable_cluster_size_allowed = get(kNonPortableCluster);
  return error_of(first);
}

FatBinary* binary_of(void** handle) { return reinterpret_cast<FatBinary*>(handle); }

}  // namespace

CUDART_EXPORT void** __cudaRegisterFatBinary(void* wrapper) {
  return reinterpret_cast<void**>(kernels().add_binary(wrapper));
}

CUDART_EXPORT void __cudaRegisterFatBinaryEnd(void**) {}

CUDART_EXPORT void __cudaUnregisterFatBinary(void** binary) { kernels().remove_binary(binary_of(binary)); }

CUDART_EXPORT void __cudaRegisterFunction(void** binary, const char* host, char*, const char* name, int, void*, void*,
                                          void*, void*, int*) {
  kernels().add_kernel(binary_of(binary), host, name);
}

CUDART_EXPORT void __cudaRegisterVar(void** binary, char* host, char*, const char* name, int, std::size_t size, int,
                                     int) {
  kernels().add_variable(binary_of(binary), host, name, size);
}

CUDART_EXPORT void __cudaRegisterManagedVar(void** binary, void** host, char*, const char* name, int, std::size_t size,
                                            int, int) {
  kernels().add_variable(binary_of(binary), static_cast<const void*>(host), name, size);
}

CUDART_EXPORT char __cudaInitModule(void**) { return 1; }

CUDART_EXPORT unsigned __cudaPushCallConfiguration(rt::Dim3 grid, rt::Dim3 block, std::size_t shared,
                                                   rt::Stream stream) {
  PushedShape*& pushed = thread_state().pushed;
  pushed =
      new PushedShape{.shape = {.grid = grid, .block = block, .shared = shared, .stream = stream}, .outer = pushed};
  return 0;
}

CUDART_EXPORT Error __cudaPopCallConfiguration(rt::Dim3* grid, rt::Dim3* block, std::size_t* shared, void* stream) {
  PushedShape*& pushed = thread_state().pushed;
  if (pushed == nullptr) return remember(Error::kMissingConfiguration);
  const std::unique_ptr<PushedShape> popped(pushed);
  pushed = popped->outer;
  *grid = popped->shape.grid;
  *block = popped->shape.block;
  *shared = popped->shape.shared;
  *static_cast<rt::Stream*>(stream) = popped->shape.stream;
  return Error::kSuccess;
}

CUDART_EXPORT Error __cudaGetKernel(cu::Kernel* kernel, const void* symbol) { return cudaGetKernel(kernel, symbol); }

CUDART_EXPORT Error __cudaLaunchKernel(cu::Kernel kernel, rt::Dim3 grid, rt::Dim3 block, void** arguments,
                                       std::size_t shared, rt::Stream stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

CUDART_EXPORT Error cudaLaunchKernel(const void* function, rt::Dim3 grid, rt::Dim3 block, void** arguments,
                                     std::size_t shared, rt::Stream stream) {
  return with_kernel(function, [&](const Driver& driver, cu::Kernel kernel) {
    return launch(driver, kernel, {.grid = grid, .block = block, .shared = shared, .stream = stream}, arguments);
  });
}

CUDART_EXPORT Error cudaLaunchKernelExC(const rt::LaunchConfig* config, const void* function, void** arguments) {
  if (config == nullptr) return remember(Error::kInvalidConfiguration);
  return with_kernel(function, [&](const Driver& driver, cu::Kernel kernel) {
    const cu::LaunchConfig passed = driver_config(*config);
    return launch_error(driver.cuLaunchKernelEx(&passed, as_function(kernel), arguments, nullptr));
  });
}

CUDART_EXPORT Error cudaLaunchCooperativeKernel(const void* function, rt::Dim3 grid, rt::Dim3 block, void** arguments,
                                                std::size_t shared, rt::Stream stream) {
  return with_kernel(function, [&](const Driver& driver, cu::Kernel kernel) {
    return launch_error(driver.cuLaunchCooperativeKernel(as_function(kernel), grid.x, grid.y, grid.z, block.x, block.y,
                                                         block.z, shared_bytes(shared), stream_for(stream), arguments));
  });
}

CUDART_EXPORT Error cudaFuncGetAttributes(rt::FuncAttributes* attributes, const void* function) {
  return with_kernel(function, [&](const Driver& driver, cu::Kernel kernel) {
    return attributes != nullptr ? read_attributes(driver, kernel, *attributes) : Error::kInvalidValue;
  });
}

CUDART_EXPORT Error cudaFuncSetAttribute(const void* function, unsigned attribute, int value) {
  return with_kernel(function, [&](const Driver& driver, cu::Kernel kernel) {
    int device = 0;
    const cu::Result result = driver.cuCtxGetDevice(&device);
    return result == cu::Result::kSuccess ? driver.cuKernelSetAttribute(attribute, value, kernel, device) : result;
  });
}

CUDART_EXPORT Error cudaFuncSetCacheConfig(const void* function, unsigned config) {
  return with_kernel(function, [&](const Driver& driver, cu::Kernel kernel) {
    return driver.cuFuncSetCacheConfig(as_function(kernel), config);
  });
}

CUDART_EXPORT Error cudaFuncSetSharedMemConfig(const void* function, unsigned config) {
  return with_kernel(function, [&](const Driver& driver, cu::Kernel kernel) {
    return driver.cuFuncSetSharedMemConfig(as_function(kernel), config);
  });
}

CUDART_EXPORT Error cudaFuncGetName(const char** name, const void* function) {
  return with_kernel(function,
                     [&](const Driver& driver, cu::Kernel kernel) { return driver.cuKernelGetName(name, kernel); });
}

CUDART_EXPORT Error cudaGetFuncBySymbol(cu::Function* function, const void* symbol) {
  return with_kernel(symbol, [&](const Driver& driver, cu::Kernel kernel) {
    const cu::Result result = driver.cuKernelGetFunction(function, kernel);
    if (result == cu::Result::kSuccess) kernels().add_handle(reinterpret_cast<cu::Kernel>(*function));
    return result;
  });
}

CUDART_EXPORT Error cudaGetKernel(cu::Kernel* kernel, const void* symbol) {
  return with_kernel(symbol, [&](const Driver&, cu::Kernel found) {
    if (kernel == nullptr) return Error::kInvalidValue;
    *kernel = found;
    return Error::kSuccess;
  });
}

CUDART_EXPORT Error cudaKernelSetAttributeForDevice(cu::Kernel kernel, unsigned attribute, int value, int device) {
  return with_context(
      [&](const Driver& driver) { return driver.cuKernelSetAttribute(attribute, value, kernel, device); });
}

CUDART_EXPORT Error cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int block_size,
                                                                  std::size_t shared) {
  return with_kernel(function, [&](const Driver& driver, cu::Kernel kernel) {
    return driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, as_function(kernel), block_size, shared);
  });
}

CUDART_EXPORT Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function,
                                                                           int block_size, std::size_t shared,
                                                                           unsigned flags) {
  return with_kernel(function, [&](const Driver& driver, cu::Kernel kernel) {
    return driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, as_function(kernel), block_size, shared,
                                                                       flags);
  });
}

CUDART_EXPORT Error cudaOccupancyAvailableDynamicSMemPerBlock(std::size_t* shared, const void* function, int blocks,
                                                              int block_size) {
  return with_kernel(function, [&](const Driver& driver, cu::Kernel kernel) {
    return driver.cuOccupancyAvailableDynamicSMemPerBlock(shared, as_function(kernel), blocks, block_size);
  });
}

CUDART_EXPORT Error cudaOccupancyMaxPotentialClusterSize(int* size, const void* function,
                                                         const rt::LaunchConfig* config) {
  if (config == nullptr) return remember(Error::kInvalidValue);
  return with_kernel(function, [&](const Driver& driver, cu::Kernel kernel) {
    const cu::LaunchConfig passed = driver_config(*config);
    return driver.cuOccupancyMaxPotentialClusterSize(size, as_function(kernel), &passed);
  });
}

CUDART_EXPORT Error cudaOccupancyMaxActiveClusters(int* clusters, const void* function,
                                                   const rt::LaunchConfig* config) {
  if (config == nullptr) return remember(Error::kInvalidValue);
  return with_kernel(function, [&](const Driver& driver, cu::Kernel kernel) {
    const cu::LaunchConfig passed = driver_config(*config);
    return driver.cuOccupancyMaxActiveClusters(clusters, as_function(kernel), &passed);
  });
}
