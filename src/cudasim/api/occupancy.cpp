// Occupancy: how many blocks of a kernel a multiprocessor holds at a time, by registers, shared memory, warps and blocks.
#include <algorithm>

#include "cudasim/api/launches.hpp"

namespace cudasim {
namespace {

constexpr int kWarp = 32;
constexpr int kPartitions = 4;  // of a multiprocessor, which share its registers out among them
constexpr unsigned kKnownFlags = 1;

int round_up_to(int value, int unit) { return (value + unit - 1) / unit * unit; }

// What is needed after the machine was let go, because the program's own function is called then.
struct Kernel {
  Card card;
  KernelInfo info;
  int most_dynamic = 0;
};

Kernel read_kernel(Call& call, cu::Function handle, const ContextRef& context) {
  require(handle != nullptr, kInvalidValue);
  const FunctionState& function = function_of(call, handle, context);
  return {call.machine.settings.card, function.info,
          function_attribute(call.machine, function, cu::FunctionAttribute::kMaxDynamicShared)};
}

Result max_active_blocks(std::string_view name, int* blocks, cu::Function function, int block_size, std::size_t dynamic,
                         unsigned flags) {
  return enter(name, Need::kContext, [&](Call& call) {
    require(blocks != nullptr && block_size > 0 && flags <= kKnownFlags, kInvalidValue);
    const Kernel kernel = read_kernel(call, function, call.context);
    *blocks = blocks_that_fit(kernel.card, kernel.info, static_cast<unsigned>(block_size), dynamic);
    return kSuccess;
  });
}

// The program's function may call the driver, so it is called without the machine's mutex.
Result max_potential_block_size(std::string_view name, int* grid, int* block, cu::Function function,
                                cu::BlockToSharedSize shared_for, std::size_t dynamic, int limit, unsigned flags) {
  Kernel kernel;
  const Result result = enter(name, Need::kContext, [&](Call& call) {
    require(grid != nullptr && block != nullptr && limit >= 0 && flags <= kKnownFlags, kInvalidValue);
    kernel = read_kernel(call, function, call.context);
    return kSuccess;
  });
  if (result != kSuccess) return result;
  int most = max_threads(kernel.card, kernel.info);
  if (limit > 0) most = std::min(most, limit);
  int best = 0;
  *grid = *block = 0;
  for (int size = round_up_to(most, kWarp); size > 0; size -= kWarp) {
    const int threads = std::min(size, most);
    const std::size_t shared = shared_for != nullptr ? shared_for(threads) : dynamic;
    const int blocks = blocks_that_fit(kernel.card, kernel.info, static_cast<unsigned>(threads), shared);
    if (blocks * threads <= best) continue;
    best = blocks * threads;
    *block = threads;
    *grid = blocks * kernel.card.multiprocessors;
    if (best == kernel.card.threads_per_multiprocessor) break;
  }
  return kSuccess;
}

std::array<unsigned, 3> cluster_of(const cu::LaunchConfig& config) {
  std::array<unsigned, 3> cluster{};
  for (unsigned i = 0; i < config.attribute_count; ++i) {
    if (config.attributes[i].id != cu::LaunchAttributeId::kClusterDimension) continue;
    std::copy_n(reinterpret_cast<const unsigned*>(config.attributes[i].value.bytes), 3, cluster.begin());
  }
  return cluster;
}

FunctionState& function_for(Call& call, cu::Function handle, const cu::LaunchConfig* config) {
  require(handle != nullptr && config != nullptr, kInvalidValue);
  require(config->attribute_count == 0 || config->attributes != nullptr, kInvalidValue);
  return function_of(call, handle, stream_of(call, config->stream)->context);
}

std::uint64_t threads_of(const cu::LaunchConfig& config) {
  return std::uint64_t{config.block_x} * config.block_y * config.block_z;
}

}  // namespace

int blocks_that_fit(const Card& card, const KernelInfo& kernel, std::uint64_t threads, std::uint64_t dynamic_shared) {
  if (threads == 0 || threads > static_cast<unsigned>(max_threads(card, kernel))) return 0;
  const int warps = static_cast<int>((threads + kWarp - 1) / kWarp);
  int blocks = std::min(card.blocks_per_multiprocessor, card.threads_per_multiprocessor / kWarp / warps);
  if (kernel.registers > 0) {
    const int fitting = card.registers_per_multiprocessor / kPartitions / registers_per_warp(kernel) * kPartitions;
    blocks = std::min(blocks, fitting / warps);
  }
  const auto most_shared = static_cast<unsigned>(card.shared_per_block_optin);
  const std::uint64_t shared = static_cast<unsigned>(kernel.shared) + std::min<std::uint64_t>(dynamic_shared, 1U << 31);
  if (shared > most_shared) return 0;
  const int unit = card.major >= 8 ? 128 : 256;
  const int per_block = round_up_to(static_cast<int>(shared) + card.reserved_shared(), unit);
  if (per_block > 0) blocks = std::min(blocks, card.shared_per_multiprocessor / per_block);
  return blocks;
}

}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, cu::Function function, int block_size,
                                                                  std::size_t dynamic) {
  return max_active_blocks("cuOccupancyMaxActiveBlocksPerMultiprocessor", blocks, function, block_size, dynamic, 0);
}

CUDASIM_EXPORT Result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, cu::Function function,
                                                                           int block_size, std::size_t dynamic,
                                                                           unsigned flags) {
  return max_active_blocks("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", blocks, function, block_size,
                           dynamic, flags);
}

CUDASIM_EXPORT Result cuOccupancyMaxPotentialBlockSize(int* grid, int* block, cu::Function function,
                                                       cu::BlockToSharedSize shared_for, std::size_t dynamic,
                                                       int limit) {
  return max_potential_block_size("cuOccupancyMaxPotentialBlockSize", grid, block, function, shared_for, dynamic, limit,
                                  0);
}

CUDASIM_EXPORT Result cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, cu::Function function,
                                                                cu::BlockToSharedSize shared_for, std::size_t dynamic,
                                                                int limit, unsigned flags) {
  return max_potential_block_size("cuOccupancyMaxPotentialBlockSizeWithFlags", grid, block, function, shared_for,
                                  dynamic, limit, flags);
}

CUDASIM_EXPORT Result cuOccupancyAvailableDynamicSMemPerBlock(std::size_t* dynamic, cu::Function function, int blocks,
                                                              int block_size) {
  return enter("cuOccupancyAvailableDynamicSMemPerBlock", Need::kContext, [&](Call& call) {
    require(dynamic != nullptr && blocks > 0 && block_size > 0, kInvalidValue);
    const Kernel kernel = read_kernel(call, function, call.context);
    require(blocks <= blocks_that_fit(kernel.card, kernel.info, static_cast<unsigned>(block_size), 0), kInvalidValue);
    const int each = kernel.card.shared_per_multiprocessor / blocks / 128 * 128 - kernel.card.reserved_shared();
    *dynamic = static_cast<std::size_t>(std::clamp(each - kernel.info.shared, 0, kernel.most_dynamic));
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuOccupancyMaxPotentialClusterSize(int* size, cu::Function handle,
                                                         const cu::LaunchConfig* config) {
  return enter("cuOccupancyMaxPotentialClusterSize", Need::kContext, [&](Call& call) {
    using enum cu::FunctionAttribute;
    require(size != nullptr, kInvalidValue);
    const FunctionState& function = function_for(call, handle, config);
    const Machine& m = call.machine;
    const int required = function_attribute(m, function, kClusterWidth) *
                         function_attribute(m, function, kClusterHeight) *
                         function_attribute(m, function, kClusterDepth);
    const int most = function_attribute(m, function, kNonPortableCluster) != 0 ? 16 : 8;
    *size = required > 0 ? required : m.settings.card.major >= 9 ? most : 1;
    return kSuccess;
  });
}

CUDASIM_EXPORT Result cuOccupancyMaxActiveClusters(int* clusters, cu::Function handle, const cu::LaunchConfig* config) {
  return enter("cuOccupancyMaxActiveClusters", Need::kContext, [&](Call& call) {
    require(clusters != nullptr, kInvalidValue);
    const FunctionState& function = function_for(call, handle, config);
    const Card& card = call.machine.settings.card;
    const auto cluster = cluster_of(*config);
    const std::uint64_t size = std::uint64_t{cluster[0]} * cluster[1] * cluster[2];
    require(size > 0, kInvalidClusterSize);
    require(size == 1 || (card.major >= 9 && size <= 16), kInvalidClusterSize);
    const int fitting = blocks_that_fit(card, function.info, threads_of(*config), config->shared_bytes);
    *clusters = fitting * card.multiprocessors / static_cast<int>(size);
    return kSuccess;
  });
}
