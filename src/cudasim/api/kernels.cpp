// What can be asked about functions and kernels, and set on them.
#include <algorithm>

#include "cudasim/api/contexts.hpp"
#include "cudasim/api/modules.hpp"

namespace cudasim {
namespace {

constexpr int kMostThreads = 1024;

// The attributes that can be set, from kMaxDynamicShared on.
bool can_be_set(cu::FunctionAttribute what) {
  using enum cu::FunctionAttribute;
  return what == kMaxDynamicShared || what == kCarveout ||
         (cu::bits(what) >= cu::bits(kClusterWidth) && cu::bits(what) <= cu::bits(kClusterScheduling));
}

int default_of(const Card& card, const KernelInfo& kernel, cu::FunctionAttribute what) {
  using enum cu::FunctionAttribute;
  if (what == kMaxDynamicShared) return std::max(0, card.shared_per_block - kernel.shared);
  return what == kCarveout ? -1 : 0;
}

int fixed_attribute(const Card& card, const KernelInfo& kernel, const Image& image, cu::FunctionAttribute what) {
  using enum cu::FunctionAttribute;
  switch (what) {
    case kMaxThreadsPerBlock:
      return max_threads(card, kernel);
    case kSharedSize:
      return kernel.shared;
    case kConstSize:
      return image.constant;
    case kLocalSize:
      return kernel.local;
    case kRegisters:
      return kernel.registers;
    case kPtxVersion:
      return kernel.ptx_version;
    case kBinaryVersion:
      return kernel.binary_version;
    default:
      return 0;  // neither cached differently, nor with clusters by its launch bounds
  }
}

bool is_attribute(cu::FunctionAttribute what) {
  return cu::bits(what) <= cu::bits(cu::FunctionAttribute::kClusterScheduling);
}

void check_value(const Card& card, const KernelInfo& kernel, cu::FunctionAttribute what, int value) {
  using enum cu::FunctionAttribute;
  require(can_be_set(what), kInvalidValue);
  switch (what) {
    case kMaxDynamicShared:
      require(value >= 0 && value <= card.shared_per_block_optin - kernel.shared, kInvalidValue);
      break;
    case kCarveout:
      require(value >= -1 && value <= 100, kInvalidValue);
      break;
    case kNonPortableCluster:
      require(value == 0 || value == 1, kInvalidValue);
      break;
    default:
      require(value >= 0, kInvalidValue);
  }
}

Result param_info(const KernelInfo& kernel, std::size_t index, std::size_t* offset, std::size_t* size) {
  require(offset != nullptr, kInvalidValue);
  require(kernel.params.has_value(), kNotSupported);
  require(index < kernel.params->size(), kInvalidValue);
  *offset = (*kernel.params)[index].offset;
  if (size != nullptr) *size = (*kernel.params)[index].size;
  return kSuccess;
}

FunctionState& function_here(Call& call, cu::Function handle, Result null) {
  require(handle != nullptr, null);
  return function_of(call, handle, call.context);
}

}  // namespace

int registers_per_warp(const KernelInfo& kernel) {
  constexpr int kUnit = 256;  // of which a warp gets a whole number
  return (kernel.registers * 32 + kUnit - 1) / kUnit * kUnit;
}

int max_threads(const Card& card, const KernelInfo& kernel) {
  const int bounds = kernel.max_threads > 0 ? std::min(kernel.max_threads, kMostThreads) : kMostThreads;
  if (kernel.registers == 0) return bounds;
  return std::min(bounds, card.registers_per_multiprocessor / registers_per_warp(kernel) * 32);
}

int function_attribute(const Machine& m, const FunctionState& function, cu::FunctionAttribute what) {
  const Card& card = m.settings.card;
  if (!can_be_set(what)) return fixed_attribute(card, function.info, *function.module->image, what);
  // What was set on the function counts, before or after what was set on its kernel.
  if (function.tuning[cu::bits(what)]) return *function.tuning[cu::bits(what)];
  if (function.kernel) {
    const auto of_kernel = function.kernel->tuning.find(function.module->context->device->number);
    if (of_kernel != function.kernel->tuning.end() && of_kernel->second[cu::bits(what)]) {
      return *of_kernel->second[cu::bits(what)];
    }
  }
  return default_of(card, function.info, what);
}

}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuFuncGetAttribute(int* value, cu::FunctionAttribute what, cu::Function handle) {
  return enter("cuFuncGetAttribute", Need::kContext, [&](Call& call) {
    require(value != nullptr && is_attribute(what), kInvalidValue);
    *value = function_attribute(call.machine, function_here(call, handle, kInvalidHandle), what);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuFuncSetAttribute(cu::Function handle, cu::FunctionAttribute what, int value) {
  return enter("cuFuncSetAttribute", Need::kContext, [&](Call& call) {
    FunctionState& function = function_here(call, handle, kInvalidHandle);
    check_value(call.machine.settings.card, function.info, what, value);
    function.tuning[cu::bits(what)] = value;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuFuncSetCacheConfig(cu::Function handle, cu::FunctionCache config) {
  return enter("cuFuncSetCacheConfig", Need::kContext, [&](Call& call) {
    function_here(call, handle, kInvalidValue);
    require(cu::bits(config) <= cu::bits(cu::FunctionCache::kEqual), kInvalidValue);
    return kSuccess;  // a preference, which devices like these do not follow
  });
}

CUDASIM_EXPORT Result cuFuncSetSharedMemConfig(cu::Function handle, cu::SharedConfig config) {
  return enter("cuFuncSetSharedMemConfig", Need::kContext, [&](Call& call) {
    function_here(call, handle, kInvalidValue);
    require(cu::bits(config) <= cu::bits(cu::SharedConfig::kEightBytes), kInvalidValue);
    return kSuccess;  // banks have one width
  });
}

CUDASIM_EXPORT Result cuFuncGetModule(cu::Module* module, cu::Function handle) {
  return enter("cuFuncGetModule", Need::kContext, [&](Call& call) {
    require(module != nullptr, kInvalidValue);
    *module = function_here(call, handle, kInvalidValue).module->handle;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuFuncGetName(const char** name, cu::Function handle) {
  return enter("cuFuncGetName", Need::kDriver, [&](Call& call) {
    require(name != nullptr, kInvalidValue);
    *name = function_here(call, handle, kInvalidValue).info.name.c_str();
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuFuncGetParamInfo(cu::Function handle, std::size_t index, std::size_t* offset,
                                         std::size_t* size) {
  return enter("cuFuncGetParamInfo", Need::kDriver, [&](Call& call) {
    return param_info(function_here(call, handle, kInvalidValue).info, index, offset, size);
  });
}

CUDASIM_EXPORT Result cuFuncLoad(cu::Function handle) {
  return enter("cuFuncLoad", Need::kDriver, [&](Call& call) {
    function_here(call, handle, kInvalidHandle);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuFuncIsLoaded(cu::FunctionLoadingState* state, cu::Function handle) {
  return enter("cuFuncIsLoaded", Need::kDriver, [&](Call& call) {
    require(state != nullptr, kInvalidValue);
    function_here(call, handle, kInvalidHandle);
    *state = cu::FunctionLoadingState::kLoaded;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuKernelGetName(const char** name, cu::Kernel handle) {
  return enter("cuKernelGetName", Need::kDriver, [&](Call& call) {
    require(name != nullptr && handle != nullptr, kInvalidValue);
    *name = kernel_of(call, handle)->info.name.c_str();
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuKernelGetLibrary(cu::Library* library, cu::Kernel handle) {
  return enter("cuKernelGetLibrary", Need::kDriver, [&](Call& call) {
    require(library != nullptr, kInvalidValue);
    *library = kernel_of(call, handle)->library;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuKernelGetParamInfo(cu::Kernel handle, std::size_t index, std::size_t* offset,
                                           std::size_t* size) {
  return enter("cuKernelGetParamInfo", Need::kDriver, [&](Call& call) {
    require(handle != nullptr, kInvalidValue);
    return param_info(kernel_of(call, handle)->info, index, offset, size);
  });
}

CUDASIM_EXPORT Result cuKernelGetAttribute(int* value, cu::FunctionAttribute what, cu::Kernel handle,
                                           cu::Device device) {
  return enter("cuKernelGetAttribute", Need::kDriver, [&](Call& call) {
    require(value != nullptr && is_attribute(what), kInvalidValue);
    Machine& m = call.machine;
    const KernelRef kernel = kernel_of(call, handle);
    const auto tuning = kernel->tuning.find(m.device(device).number);
    const bool set = tuning != kernel->tuning.end() && tuning->second[cu::bits(what)];
    if (set) {
      *value = *tuning->second[cu::bits(what)];
    } else if (can_be_set(what)) {
      *value = default_of(m.settings.card, kernel->info, what);
    } else {
      *value = fixed_attribute(m.settings.card, kernel->info, *m.libraries.find(kernel->library)->image, what);
    }
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuKernelSetAttribute(cu::FunctionAttribute what, int value, cu::Kernel handle,
                                           cu::Device device) {
  return enter("cuKernelSetAttribute", Need::kDriver, [&](Call& call) {
    const KernelRef kernel = kernel_of(call, handle);
    const int number = call.machine.device(device).number;
    check_value(call.machine.settings.card, kernel->info, what, value);
    kernel->tuning[number][cu::bits(what)] = value;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuKernelSetCacheConfig(cu::Kernel handle, cu::FunctionCache config, cu::Device device) {
  return enter("cuKernelSetCacheConfig", Need::kDriver, [&](Call& call) {
    kernel_of(call, handle);
    call.machine.device(device);
    require(cu::bits(config) <= cu::bits(cu::FunctionCache::kEqual), kInvalidValue);
    return kSuccess;
  });
}
