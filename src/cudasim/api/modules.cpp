#include "cudasim/api/modules.hpp"

#include <algorithm>
#include <cstring>

#include "cudasim/api/contexts.hpp"
#include "cudasim/api/memory.hpp"

namespace cudasim {
namespace {

constexpr std::uint64_t kVariableAlignment = 256;

enum class Format { kAny, kFatBinary };
enum class Memory { kDevice, kManaged };

ModuleRef module_of(Call& call, cu::Module handle, Result unknown) {
  ModuleRef module = find_live(call, call.machine.modules, handle);
  require(module != nullptr, unknown);
  return module;
}

LibraryRef library_of(Call& call, cu::Library handle, Result unknown = kInvalidHandle) {
  LibraryRef library = find_live(call, call.machine.libraries, handle);
  require(library != nullptr, unknown);
  return library;
}

ImageRef load_image(Call& call, const void* data, Format format) {
  require(data != nullptr, kInvalidValue);
  const int capability = call.machine.settings.card.capability();
  try {
    return format == Format::kFatBinary ? read_fat_binary(data, capability) : read_image(data, capability);
  } catch (const BadImage& bad) {
    throw Refusal{bad.code};
  }
}

// Memory for variables in one allocation, with their initial values.
std::uint64_t allocate_variables(Machine& m, DeviceState* device, const std::vector<const VariableInfo*>& variables,
                                 cu::Context context, std::unordered_map<std::string, ModuleState::Variable>& places) {
  std::uint64_t size = 0;
  for (const VariableInfo* variable : variables)
    size += round_up(std::max<std::uint64_t>(variable->size, 1), kVariableAlignment);
  const PhysicalRef physical = m.new_physical(device, size, kPage);
  Range& range = new_allocation(m, device != nullptr ? RangeKind::kDevice : RangeKind::kManaged, physical,
                                device != nullptr ? device->bit() : kAllDevices, kPage);
  range.context = context;
  range.of_module = true;
  std::uint64_t at = 0;
  for (const VariableInfo* variable : variables) {
    if (!variable->initial.empty()) {
      std::memcpy(physical->data(at), variable->initial.data(), variable->initial.size());
    }
    places[variable->name] = {range.address + at, variable->size};
    at += round_up(std::max<std::uint64_t>(variable->size, 1), kVariableAlignment);
  }
  return range.address;
}

std::vector<const VariableInfo*> variables_in(const Image& image, Memory memory) {
  std::vector<const VariableInfo*> found;
  for (const VariableInfo& variable : image.variables) {
    const Memory needed = variable.kind == VariableKind::kManaged ? Memory::kManaged : Memory::kDevice;
    if (needed == memory) found.push_back(&variable);
  }
  return found;
}

void allocate_for_module(Machine& m, ModuleState& module, const std::vector<const VariableInfo*>& variables,
                         Memory memory) {
  if (variables.empty()) return;
  module.memory.push_back(allocate_variables(m, memory == Memory::kManaged ? nullptr : module.context->device,
                                             variables, module.context->handle, module.variables));
  if (!m.values.on() || module.image->opaque) return;  // loading writes the initial values, if it knows them
  m.values.mark(*m.space, module.memory.back(), m.space->find_exact(module.memory.back())->size, Content::kKnown);
}

void free_variables(Machine& m, const std::vector<std::uint64_t>& addresses) {
  for (const std::uint64_t address : addresses) {
    if (Range* range = m.space->find_exact(address)) free_allocation(m, *range, "");
  }
}

ModuleRef add_module(Call& call, const ContextState& context, const ImageRef& image, const LibraryRef& library) {
  Machine& m = call.machine;
  auto module = std::make_shared<ModuleState>();
  module->context = &context;
  module->image = image;
  try {
    allocate_for_module(m, *module, variables_in(*image, Memory::kDevice), Memory::kDevice);
    if (library == nullptr) {
      allocate_for_module(m, *module, variables_in(*image, Memory::kManaged), Memory::kManaged);
    }
  } catch (...) {
    free_variables(m, module->memory);
    throw;
  }
  if (library != nullptr) module->library = library->handle;
  module->handle = m.modules.reserve(m.settings.reuse);
  m.modules.add(module->handle, module);
  return module;
}

KernelInfo info_of(Call& call, const Image& image, std::string_view name) {
  if (image.opaque) {
    require(!name.empty(), kNotFound);
    KernelInfo info;
    info.name = name;
    info.registers = kAssumedRegisters;
    info.ptx_version = info.binary_version =
        image.architecture != 0 ? image.architecture : call.machine.settings.card.capability();
    return info;
  }
  const KernelInfo* kernel = image.kernel(name);
  require(kernel != nullptr, kNotFound);
  return *kernel;
}

FunctionRef add_function(Call& call, const ModuleRef& module, const KernelInfo& info) {
  Machine& m = call.machine;
  auto function = std::make_shared<FunctionState>();
  function->module = module;
  function->info = info;
  function->handle = m.functions.reserve(m.settings.reuse);
  m.functions.add(function->handle, function);
  module->functions.emplace(info.name, function->handle);
  return function;
}

FunctionRef function_named(Call& call, const ModuleRef& module, std::string_view name) {
  const auto known = module->functions.find(std::string(name));
  if (known != module->functions.end()) return call.machine.functions.find(known->second);
  return add_function(call, module, info_of(call, *module->image, name));
}

ModuleRef module_in(Call& call, const LibraryRef& library, const ContextState& context) {
  for (const auto& [where, module] : library->modules) {
    if (where == &context) return module;
  }
  const ModuleRef module = add_module(call, context, library->image, library);
  library->modules.emplace_back(&context, module);
  return module;
}

KernelRef kernel_named(Call& call, const LibraryRef& library, std::string_view name) {
  Machine& m = call.machine;
  const auto known = library->kernels.find(std::string(name));
  if (known != library->kernels.end()) return m.kernels.find(known->second);
  auto kernel = std::make_shared<KernelState>();
  kernel->library = library->handle;
  kernel->info = info_of(call, *library->image, name);
  kernel->handle = m.kernels.reserve(m.settings.reuse);
  m.kernels.add(kernel->handle, kernel);
  library->kernels.emplace(kernel->info.name, kernel->handle);
  return kernel;
}

FunctionState& load_kernel(Call& call, const KernelRef& kernel, const ContextState& context) {
  for (const auto& [where, function] : kernel->functions) {
    if (where == &context) return *function;
  }
  const ModuleRef module = module_in(call, call.machine.libraries.find(kernel->library), context);
  const FunctionRef function = function_named(call, module, kernel->info.name);
  function->kernel = kernel;
  kernel->functions.emplace_back(&context, function.get());
  return *function;
}

// Where a variable is. One of an image that says nothing of itself comes to be when it is asked for.
ModuleState::Variable variable_named(Call& call, ModuleState& module, const std::string& name) {
  const auto found = module.variables.find(name);
  if (found != module.variables.end()) return found->second;
  require(module.image->opaque && !name.empty(), kNotFound);
  VariableInfo assumed;
  assumed.name = name;
  assumed.size = kAssumedVariableSize;
  allocate_for_module(call.machine, module, {&assumed}, Memory::kDevice);
  return module.variables.at(name);
}

Result give_variable(const ModuleState::Variable& variable, cu::DevicePtr* ptr, std::size_t* bytes) {
  if (ptr != nullptr) *ptr = variable.address;
  if (bytes != nullptr) *bytes = variable.size;
  return kSuccess;
}

// To unload code that queued work still needs is undefined: that work faults.
void report_unloaded_under_work(Call& call, const ModuleState& module) {
  const auto waiting = [](const Mark& mark) { return !mark.reached(); };
  if (std::none_of(module.launches.begin(), module.launches.end(), waiting)) return;
  Finding finding;
  finding.kind = "module gone";
  finding.call = call.name;
  finding.handle = reinterpret_cast<std::uint64_t>(module.handle);
  finding.text = finding.call + " unloads module " + hex(finding.handle) +
                 " while launches of its kernels are queued: they fault when they run";
  call.machine.findings.add(std::move(finding));
}

void unload(Call& call, const ModuleRef& module) {
  Machine& m = call.machine;
  const Death death = death_by(call);
  report_unloaded_under_work(call, *module);
  module->unloaded = true;
  for (const auto& [name, function] : module->functions) m.functions.erase(function, death);
  free_variables(m, module->memory);
  m.modules.erase(module->handle, death);
}

// Logs of the compiler are empty: nothing is compiled.
void answer_options(unsigned count, const cu::JitOption* options, void** values) {
  require(count == 0 || (options != nullptr && values != nullptr), kInvalidValue);
  for (unsigned i = 0; i < count; ++i) {
    using enum cu::JitOption;
    if (options[i] == kInfoLogSize || options[i] == kErrorLogSize) values[i] = nullptr;
    const bool buffer = options[i] == kInfoLogBuffer || options[i] == kErrorLogBuffer;
    if (buffer && values[i] != nullptr) *static_cast<char*>(values[i]) = '\0';
  }
}

Result load_module(std::string_view name, cu::Module* out, const void* data, Format format) {
  return enter(name, Need::kContext, [&](Call& call) {
    require(out != nullptr, kInvalidValue);
    *out = add_module(call, *call.context, load_image(call, data, format), nullptr)->handle;
    return kSuccess;
  });
}

}  // namespace

KernelRef kernel_of(Call& call, cu::Kernel handle) {
  KernelRef kernel = find_live(call, call.machine.kernels, handle);
  require(kernel != nullptr, kInvalidHandle);
  return kernel;
}

FunctionState& function_of(Call& call, cu::Function handle, const ContextRef& context) {
  if (FunctionState* function = call.machine.functions.peek(handle)) return *function;
  const auto kernel_handle = reinterpret_cast<cu::Kernel>(handle);
  if (call.machine.kernels.peek(kernel_handle) != nullptr) {
    require(context != nullptr, kInvalidContext);
    return load_kernel(call, call.machine.kernels.find(kernel_handle), *context);
  }
  if (call.machine.kernels.was_issued(kernel_handle)) {
    find_live(call, call.machine.kernels, kernel_handle);
  } else {
    find_live(call, call.machine.functions, handle);
  }
  throw Refusal{kInvalidHandle};
}

void forget_modules(Machine& m, const ContextState& context, const Death& death) {
  std::vector<ModuleRef> gone;
  for (const auto& [handle, module] : m.modules.all()) {
    if (module->context == &context) gone.push_back(module);
  }
  for (const ModuleRef& module : gone) {
    for (const auto& [name, function] : module->functions) m.functions.erase(function, death);
    m.modules.erase(module->handle, death);
  }
  const auto is_here = [&](const auto& entry) { return entry.first == &context; };
  for (const auto& [handle, library] : m.libraries.all()) std::erase_if(library->modules, is_here);
  for (const auto& [handle, kernel] : m.kernels.all()) std::erase_if(kernel->functions, is_here);
}

}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuModuleLoadData(cu::Module* module, const void* image) {
  return load_module("cuModuleLoadData", module, image, Format::kAny);
}

CUDASIM_EXPORT Result cuModuleLoadDataEx(cu::Module* module, const void* image, unsigned count, cu::JitOption* options,
                                         void** values) {
  return enter("cuModuleLoadDataEx", Need::kContext, [&](Call& call) {
    require(module != nullptr, kInvalidValue);
    answer_options(count, options, values);
    *module = add_module(call, *call.context, load_image(call, image, Format::kAny), nullptr)->handle;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuModuleLoadFatBinary(cu::Module* module, const void* fat) {
  return load_module("cuModuleLoadFatBinary", module, fat, Format::kFatBinary);
}

CUDASIM_EXPORT Result cuModuleUnload(cu::Module handle) {
  return enter("cuModuleUnload", Need::kContext, [&](Call& call) {
    const ModuleRef module = module_of(call, handle, kInvalidValue);
    require(module->library == nullptr, kNotPermitted);
    unload(call, module);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuModuleGetLoadingMode(cu::ModuleLoadingMode* mode) {
  return enter("cuModuleGetLoadingMode", Need::kDriver, [&](Call&) {
    require(mode != nullptr, kInvalidValue);
    *mode = cu::ModuleLoadingMode::kLazy;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuModuleGetFunction(cu::Function* function, cu::Module handle, const char* name) {
  return enter("cuModuleGetFunction", Need::kContext, [&](Call& call) {
    require(function != nullptr && name != nullptr, kInvalidValue);
    *function = function_named(call, module_of(call, handle, kInvalidValue), name)->handle;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuModuleGetFunctionCount(unsigned* count, cu::Module handle) {
  return enter("cuModuleGetFunctionCount", Need::kDriver, [&](Call& call) {
    require(count != nullptr, kInvalidValue);
    const ModuleRef module = module_of(call, handle, kInvalidHandle);
    const Image& image = *module->image;
    *count = static_cast<unsigned>(image.opaque ? module->functions.size() : image.kernels.size());
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuModuleEnumerateFunctions(cu::Function* functions, unsigned count, cu::Module handle) {
  return enter("cuModuleEnumerateFunctions", Need::kContext, [&](Call& call) {
    require(functions != nullptr && count > 0, kInvalidValue);
    const ModuleRef module = module_of(call, handle, kInvalidHandle);
    for (const KernelInfo& kernel : module->image->kernels) function_named(call, module, kernel.name);
    for (const auto& [name, function] : module->functions) {
      if (count-- == 0) break;
      *functions++ = function;
    }
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuModuleGetGlobal_v2(cu::DevicePtr* ptr, std::size_t* bytes, cu::Module handle,
                                           const char* name) {
  return enter("cuModuleGetGlobal", Need::kContext, [&](Call& call) {
    require((ptr != nullptr || bytes != nullptr) && name != nullptr, kInvalidValue);
    return give_variable(variable_named(call, *module_of(call, handle, kInvalidValue), name), ptr, bytes);
  });
}

CUDASIM_EXPORT Result cuLibraryLoadData(cu::Library* out, const void* code, cu::JitOption* jit_options,
                                        void** jit_values, unsigned jit_count, cu::LibraryOption* options,
                                        void** values, unsigned count) {
  return enter("cuLibraryLoadData", Need::kDriver, [&](Call& call) {
    require(out != nullptr && (count == 0 || (options != nullptr && values != nullptr)), kInvalidValue);
    answer_options(jit_count, jit_options, jit_values);
    Machine& m = call.machine;
    auto library = std::make_shared<LibraryState>();
    library->image = load_image(call, code, Format::kAny);
    library->handle = m.libraries.reserve(m.settings.reuse);
    m.libraries.add(library->handle, library);
    *out = library->handle;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuLibraryUnload(cu::Library handle) {
  return enter("cuLibraryUnload", Need::kDriver, [&](Call& call) {
    Machine& m = call.machine;
    const LibraryRef library = library_of(call, handle, kInvalidValue);
    for (const auto& [context, module] : library->modules) unload(call, module);
    for (const auto& [name, kernel] : library->kernels) m.kernels.erase(kernel, death_by(call));
    if (!library->managed.empty()) free_variables(m, {library->memory});
    m.libraries.erase(handle, death_by(call));
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuLibraryGetKernel(cu::Kernel* kernel, cu::Library handle, const char* name) {
  return enter("cuLibraryGetKernel", Need::kDriver, [&](Call& call) {
    require(kernel != nullptr && name != nullptr, kInvalidValue);
    *kernel = kernel_named(call, library_of(call, handle), name)->handle;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuLibraryGetKernelCount(unsigned* count, cu::Library handle) {
  return enter("cuLibraryGetKernelCount", Need::kDriver, [&](Call& call) {
    require(count != nullptr, kInvalidValue);
    const LibraryRef library = library_of(call, handle);
    const Image& image = *library->image;
    *count = static_cast<unsigned>(image.opaque ? library->kernels.size() : image.kernels.size());
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuLibraryEnumerateKernels(cu::Kernel* kernels, unsigned count, cu::Library handle) {
  return enter("cuLibraryEnumerateKernels", Need::kDriver, [&](Call& call) {
    require(kernels != nullptr && count > 0, kInvalidValue);
    const LibraryRef library = library_of(call, handle);
    for (const KernelInfo& kernel : library->image->kernels) kernel_named(call, library, kernel.name);
    for (const auto& [name, kernel] : library->kernels) {
      if (count-- == 0) break;
      *kernels++ = kernel;
    }
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuLibraryGetModule(cu::Module* module, cu::Library handle) {
  return enter("cuLibraryGetModule", Need::kContext, [&](Call& call) {
    require(module != nullptr, kInvalidValue);
    *module = module_in(call, library_of(call, handle), *call.context)->handle;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuLibraryGetGlobal(cu::DevicePtr* ptr, std::size_t* bytes, cu::Library handle, const char* name) {
  return enter("cuLibraryGetGlobal", Need::kContext, [&](Call& call) {
    require((ptr != nullptr || bytes != nullptr) && name != nullptr, kInvalidValue);
    const ModuleRef module = module_in(call, library_of(call, handle), *call.context);
    return give_variable(variable_named(call, *module, name), ptr, bytes);
  });
}

// One for all devices, made when it is first asked for.
CUDASIM_EXPORT Result cuLibraryGetManaged(cu::DevicePtr* ptr, std::size_t* bytes, cu::Library handle,
                                          const char* name) {
  return enter("cuLibraryGetManaged", Need::kDriver, [&](Call& call) {
    require((ptr != nullptr || bytes != nullptr) && name != nullptr, kInvalidValue);
    const LibraryRef library = library_of(call, handle);
    const auto variables = variables_in(*library->image, Memory::kManaged);
    if (library->managed.empty() && !variables.empty()) {
      library->memory = allocate_variables(call.machine, nullptr, variables, nullptr, library->managed);
    }
    const auto found = library->managed.find(name);
    require(found != library->managed.end(), kNotFound);
    return give_variable(found->second, ptr, bytes);
  });
}

CUDASIM_EXPORT Result cuKernelGetFunction(cu::Function* function, cu::Kernel handle) {
  return enter("cuKernelGetFunction", Need::kContext, [&](Call& call) {
    require(function != nullptr, kInvalidValue);
    *function = load_kernel(call, kernel_of(call, handle), *call.context).handle;
    return kSuccess;
  });
}
