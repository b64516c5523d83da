#include "cudasim/api/launches.hpp"

#include <algorithm>
#include <cstring>

#include "cudasim/api/contexts.hpp"
#include "cudasim/api/events.hpp"
#include "cudasim/api/graphs.hpp"
#include "cudasim/api/tracking.hpp"

namespace cudasim {
namespace {

constexpr std::array<unsigned, 3> kMostBlocks{0x7fffffff, 65535, 65535};
constexpr std::array<unsigned, 3> kMostThreadsEach{1024, 1024, 64};
constexpr unsigned kMostThreadsPerBlock = 1024;
constexpr unsigned kPortableCluster = 8, kLargestCluster = 16;

bool within(const std::array<unsigned, 3>& given, const std::array<unsigned, 3>& most) {
  for (std::size_t i = 0; i < 3; ++i) {
    if (given[i] == 0 || given[i] > most[i]) return false;
  }
  return true;
}

void check_cluster(const Machine& m, const FunctionState& function, const Launch& launch) {
  using enum cu::FunctionAttribute;
  std::array<unsigned, 3> cluster = launch.cluster;
  const std::array required{kClusterWidth, kClusterHeight, kClusterDepth};
  for (std::size_t i = 0; i < 3; ++i) {
    const auto wanted = static_cast<unsigned>(function_attribute(m, function, required[i]));
    require(cluster[i] == 0 || wanted == 0 || cluster[i] == wanted, kInvalidValue);
    if (cluster[i] == 0) cluster[i] = wanted;
  }
  if (cluster[0] + cluster[1] + cluster[2] == 0) return;
  require(cluster[0] > 0 && cluster[1] > 0 && cluster[2] > 0, kInvalidClusterSize);
  const std::uint64_t size = std::uint64_t{cluster[0]} * cluster[1] * cluster[2];
  const unsigned most = m.settings.card.major < 9                                   ? 1
                        : function_attribute(m, function, kNonPortableCluster) != 0 ? kLargestCluster
                                                                                    : kPortableCluster;
  require(size <= most, kInvalidClusterSize);
  for (std::size_t i = 0; i < 3; ++i) require(launch.grid[i] % cluster[i] == 0, kInvalidValue);
}

// The buffer that the list of extra settings names, and its size.
std::pair<const char*, std::size_t> extra_buffer(void** extra) {
  const char* buffer = nullptr;
  std::size_t size = 0;
  for (void** at = extra; *at != nullptr; at += 2) {
    const auto what = reinterpret_cast<std::uintptr_t>(*at);
    if (what == cu::bits(cu::LaunchParam::kBufferPointer)) {
      buffer = static_cast<const char*>(at[1]);
    } else {
      require(what == cu::bits(cu::LaunchParam::kBufferSize) && at[1] != nullptr, kInvalidValue);
      std::memcpy(&size, at[1], sizeof size);
    }
  }
  require(size == 0 || buffer != nullptr, kInvalidValue);
  return {buffer, size};
}

// Launches that may not have run: to unload their module then is undefined.
void remember(ModuleState& module, const Mark& mark) {
  if (mark.reached()) return;
  for (Mark& known : module.launches) {
    if (known.stream != mark.stream && !known.reached()) continue;
    known = mark;
    return;
  }
  module.launches.push_back(mark);
}

void record_events(Call& call, const StreamRef& stream, const cu::LaunchConfig& config) {
  for (unsigned i = 0; i < config.attribute_count; ++i) {
    const cu::LaunchAttribute& attribute = config.attributes[i];
    if (attribute.id == cu::LaunchAttributeId::kProgrammaticEvent) {
      record_with_launch(call, attribute.value.programmatic_event, stream);
    } else if (attribute.id == cu::LaunchAttributeId::kLaunchCompletionEvent) {
      record_with_launch(call, attribute.value.completion_event, stream);
    }
  }
}

StreamRef launch(Call& call, const Launch& wanted, cu::Stream handle) {
  const StreamRef stream = stream_of(call, handle);
  FunctionState& function = function_of(call, wanted.function, stream->context);
  require(function.module->context == stream->context.get(), kInvalidHandle);
  check_launch(call.machine, function, wanted);
  Arguments arguments = copy_arguments(function, wanted);
  Work work = launch_work(call.name, function);
  if (stream->capture) {
    work.params = kernel_params(call.machine.functions.find(function.handle), wanted, std::move(arguments));
    work.track = track_kernel_node;
  } else if (call.machine.values.on() && is_marking_by_caller()) {  // who knows its arguments, but not its module
    work.track = [&](Call& now, Work&) { forget_variables(now.machine, *function.module); };
  } else if (call.machine.values.on()) {
    work.track = [&](Call& now, Work&) { forget_written(now.machine, function, arguments); };
  }
  const Mark mark = submit(call, stream, std::move(work));
  remember(*function.module, mark);
  return stream;
}

Launch read_config(const cu::LaunchConfig& config, cu::Function function, void** params, void** extra) {
  Launch launch{.function = function,
                .grid = {config.grid_x, config.grid_y, config.grid_z},
                .block = {config.block_x, config.block_y, config.block_z},
                .shared = config.shared_bytes,
                .params = params,
                .extra = extra};
  require(config.attribute_count == 0 || config.attributes != nullptr, kInvalidValue);
  for (unsigned i = 0; i < config.attribute_count; ++i) {
    const cu::LaunchAttribute& attribute = config.attributes[i];
    switch (attribute.id) {
      case cu::LaunchAttributeId::kCooperative:
        launch.cooperative = attribute.value.cooperative != 0;
        break;
      case cu::LaunchAttributeId::kClusterDimension:
        std::memcpy(launch.cluster.data(), attribute.value.bytes, sizeof launch.cluster);
        break;
      case cu::LaunchAttributeId::kDeviceUpdatableNode:
        require(attribute.value.device_updatable == 0, kNotSupported);
        break;
      case cu::LaunchAttributeId::kSynchronizationPolicy:  // of streams only
        throw Refusal{kInvalidValue};
      default:
        break;  // about speed, which nothing has here
    }
  }
  return launch;
}

}  // namespace

void check_launch(const Machine& m, const FunctionState& function, const Launch& launch) {
  const Card& card = m.settings.card;
  require(within(launch.grid, kMostBlocks) && within(launch.block, kMostThreadsEach), kInvalidValue);
  require(launch.threads() <= kMostThreadsPerBlock, kInvalidValue);
  require(launch.threads() <= static_cast<unsigned>(max_threads(card, function.info)), kLaunchOutOfResources);
  const int most = function_attribute(m, function, cu::FunctionAttribute::kMaxDynamicShared);
  require(launch.shared <= static_cast<unsigned>(most), kInvalidValue);
  require(function.info.shared <= card.shared_per_block_optin, kLaunchOutOfResources);
  check_cluster(m, function, launch);
  if (!launch.cooperative) return;
  const int fitting = blocks_that_fit(card, function.info, launch.threads(), launch.shared);
  const std::uint64_t together = static_cast<std::uint64_t>(fitting) * static_cast<unsigned>(card.multiprocessors);
  require(launch.blocks() <= together, kCooperativeLaunchTooLarge);
}

Arguments copy_arguments(const FunctionState& function, const Launch& launch) {
  require(launch.params == nullptr || launch.extra == nullptr, kInvalidValue);
  const auto& params = function.info.params;
  const std::size_t size = params && !params->empty() ? params->back().offset + params->back().size : 0;
  if (launch.extra != nullptr) {
    const auto [buffer, given] = extra_buffer(launch.extra);
    require(!params || given >= size, kInvalidValue);
    return std::vector<char>(buffer, buffer + given);
  }
  if (!params) return std::nullopt;
  require(params->empty() || launch.params != nullptr, kInvalidValue);
  std::vector<char> bytes(size);
  for (std::size_t i = 0; i < params->size(); ++i) {
    std::memcpy(bytes.data() + (*params)[i].offset, launch.params[i], (*params)[i].size);
  }
  return bytes;
}

Work launch_work(std::string_view name, const FunctionState& function) {
  Work work{.name = name, .node = cu::GraphNodeType::kKernel};
  work.if_queued = [module = function.module] { return module->unloaded ? kIllegalInstruction : kSuccess; };
  return work;
}

}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuLaunchKernel(cu::Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                     cu::Stream stream, void** params, void** extra) {
  return enter("cuLaunchKernel", Need::kContext, [&](Call& call) {
    launch(call,
           {.function = function,
            .grid = {grid_x, grid_y, grid_z},
            .block = {block_x, block_y, block_z},
            .shared = shared,
            .params = params,
            .extra = extra},
           stream);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuLaunchKernelEx(const cu::LaunchConfig* config, cu::Function function, void** params,
                                       void** extra) {
  return enter("cuLaunchKernelEx", Need::kContext, [&](Call& call) {
    require(config != nullptr, kInvalidValue);
    const StreamRef stream = launch(call, read_config(*config, function, params, extra), config->stream);
    record_events(call, stream, *config);
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuLaunchCooperativeKernel(cu::Function function, unsigned grid_x, unsigned grid_y,
                                                unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                                                unsigned shared, cu::Stream stream, void** params) {
  return enter("cuLaunchCooperativeKernel", Need::kContext, [&](Call& call) {
    launch(call,
           {.function = function,
            .grid = {grid_x, grid_y, grid_z},
            .block = {block_x, block_y, block_z},
            .shared = shared,
            .cooperative = true,
            .params = params},
           stream);
    return kSuccess;
  });
}
