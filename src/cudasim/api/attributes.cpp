// The attributes of devices: figures of the card, what follows from its compute capability, and what is simulated.
#include <algorithm>
#include <array>
#include <utility>

#include "cudasim/api/devices.hpp"

// A namespace of its own for the many short names.
namespace cudasim::device_attributes {
namespace {

using enum cu::DeviceAttribute;

// The same on all devices from compute capability 7.0 on.
constexpr std::array kOnEveryDevice{
    std::pair{kMaxThreadsPerBlock, 1024},
    std::pair{kMaxBlockDimX, 1024},
    std::pair{kMaxBlockDimY, 1024},
    std::pair{kMaxBlockDimZ, 64},
    std::pair{kMaxGridDimX, 0x7fffffff},
    std::pair{kMaxGridDimY, 65535},
    std::pair{kMaxGridDimZ, 65535},
    std::pair{kTotalConstantMemory, 64 << 10},
    std::pair{kWarpSize, 32},
    std::pair{kMaxPitch, kMaxPitchBytes},
    std::pair{kMaxRegistersPerBlock, 64 << 10},
    std::pair{kTextureAlignment, 512},
    std::pair{kTexturePitchAlignment, 32},
    std::pair{kSurfaceAlignment, 512},
    std::pair{kAsyncEngineCount, 3},
    std::pair{kPciDeviceId, 0},
    std::pair{kPciDomainId, 0},
    std::pair{kGpuOverlap, 1},
    std::pair{kCanMapHostMemory, 1},
    std::pair{kConcurrentKernels, 1},
    std::pair{kUnifiedAddressing, 1},
    std::pair{kStreamPrioritiesSupported, 1},
    std::pair{kGlobalL1CacheSupported, 1},
    std::pair{kLocalL1CacheSupported, 1},
    std::pair{kManagedMemory, 1},
    std::pair{kConcurrentManagedAccess, 1},
    std::pair{kComputePreemptionSupported, 1},
    std::pair{kCanUseHostPointerForRegistered, 1},
    std::pair{kCanUse64BitStreamMemOps, 1},
    std::pair{kCanUseStreamWaitValueNor, 1},
    std::pair{kCooperativeLaunch, 1},
    std::pair{kHostRegisterSupported, 1},
    std::pair{kMemoryPoolsSupported, 1},
    std::pair{kHostNumaId, -1},
    std::pair{kNumaId, -1},
};

// Textures and surfaces are not simulated, but programs ask for their limits.
constexpr std::array kTextureLimits{
    std::pair{kTexture1dWidth, 131072},
    std::pair{kTexture2dWidth, 131072},
    std::pair{kTexture2dHeight, 65536},
    std::pair{kTexture3dWidth, 16384},
    std::pair{kTexture3dHeight, 16384},
    std::pair{kTexture3dDepth, 16384},
    std::pair{kTexture2dLayeredWidth, 32768},
    std::pair{kTexture2dLayeredHeight, 32768},
    std::pair{kTexture2dLayeredLayers, 2048},
    std::pair{kTexture1dLayeredWidth, 32768},
    std::pair{kTexture1dLayeredLayers, 2048},
    std::pair{kCanTex2dGather, 1},
    std::pair{kTexture2dGatherWidth, 32768},
    std::pair{kTexture2dGatherHeight, 32768},
    std::pair{kTexture3dWidthAlternate, 8192},
    std::pair{kTexture3dHeightAlternate, 8192},
    std::pair{kTexture3dDepthAlternate, 32768},
    std::pair{kTexturecubemapWidth, 32768},
    std::pair{kTexturecubemapLayeredWidth, 32768},
    std::pair{kTexturecubemapLayeredLayers, 2046},
    std::pair{kSurface1dWidth, 32768},
    std::pair{kSurface2dWidth, 131072},
    std::pair{kSurface2dHeight, 65536},
    std::pair{kSurface3dWidth, 16384},
    std::pair{kSurface3dHeight, 16384},
    std::pair{kSurface3dDepth, 16384},
    std::pair{kSurface1dLayeredWidth, 32768},
    std::pair{kSurface1dLayeredLayers, 2048},
    std::pair{kSurface2dLayeredWidth, 32768},
    std::pair{kSurface2dLayeredHeight, 32768},
    std::pair{kSurface2dLayeredLayers, 2048},
    std::pair{kSurfacecubemapWidth, 32768},
    std::pair{kSurfacecubemapLayeredWidth, 32768},
    std::pair{kSurfacecubemapLayeredLayers, 2046},
    std::pair{kTexture1dLinearWidth, 1 << 28},
    std::pair{kTexture2dLinearWidth, 131072},
    std::pair{kTexture2dLinearHeight, 65000},
    std::pair{kTexture2dLinearPitch, 2097120},
    std::pair{kTexture2dMipmappedWidth, 32768},
    std::pair{kTexture2dMipmappedHeight, 32768},
    std::pair{kTexture1dMipmappedWidth, 32768},
};

template <typename Table>
const int* find_in(const Table& table, cu::DeviceAttribute what) {
  const auto it = std::find_if(table.begin(), table.end(), [&](const auto& row) { return row.first == what; });
  return it == table.end() ? nullptr : &it->second;
}

// How many times as fast single precision is: 2 for the devices made for computing, which have a unit of their own.
int single_to_double(int capability) {
  const bool for_computing =
      capability == 60 || capability == 70 || capability == 80 || capability == 90 || capability == 100;
  return for_computing ? 2 : capability >= 86 ? 64 : 32;
}

int figure_of(const Card& card, cu::DeviceAttribute what) {
  switch (what) {
    case kMaxSharedMemoryPerBlock:
      return card.shared_per_block;
    case kMaxSharedMemoryPerBlockOptin:
      return card.shared_per_block_optin;
    case kMaxSharedMemoryPerMultiprocessor:
      return card.shared_per_multiprocessor;
    case kReservedSharedMemoryPerBlock:
      return card.reserved_shared();
    case kMaxRegistersPerMultiprocessor:
      return card.registers_per_multiprocessor;
    case kMaxThreadsPerMultiprocessor:
      return card.threads_per_multiprocessor;
    case kMaxBlocksPerMultiprocessor:
      return card.blocks_per_multiprocessor;
    case kMultiprocessorCount:
      return card.multiprocessors;
    case kClockRate:
      return card.clock_khz;
    case kMemoryClockRate:
      return card.memory_clock_khz;
    case kMemoryBusWidth:
      return card.bus_width;
    case kL2CacheSize:
      return card.l2_cache;
    case kMaxPersistingL2CacheSize:
      return card.major >= 8 ? card.l2_cache / 4 * 3 : 0;
    case kMaxAccessPolicyWindowSize:
      return card.major >= 8 ? 128 << 20 : 0;
    case kComputeCapabilityMajor:
      return card.major;
    case kComputeCapabilityMinor:
      return card.minor;
    case kSingleToDoublePrecisionPerfRatio:
      return single_to_double(card.capability());
    case kClusterLaunch:
      return card.major >= 9 ? 1 : 0;
    case kMemSyncDomainCount:
      return card.major >= 9 ? 4 : 1;
    default:
      return 0;
  }
}

int find(const Machine& m, const DeviceState& device, cu::DeviceAttribute what) {
  if (const int* value = find_in(kOnEveryDevice, what)) return *value;
  if (const int* value = find_in(kTextureLimits, what)) return *value;
  const Settings& settings = m.settings;
  const bool rdma = settings.rdma != Rdma::kNo;
  switch (what) {
    case kPciBusId:
      return device.number + 1;
    case kMultiGpuBoardGroupId:
      return device.number;
    case kVirtualMemorySupported:
    case kPosixHandleSupported:
      return settings.vmm ? 1 : 0;
    case kIntegrated:
      return settings.integrated ? 1 : 0;
    case kComputeMode: {
      const bool exclusive = settings.is_exclusive(device.number);
      return static_cast<int>(cu::bits(exclusive ? cu::ComputeMode::kExclusiveProcess : cu::ComputeMode::kDefault));
    }
    case kRdmaWithVmmSupported:
      return settings.vmm && rdma ? 1 : 0;
    case kGpuDirectRdmaSupported:
    case kGpuDirectRdmaFlushWritesOptions:  // cuFlushGPUDirectRDMAWrites
      return rdma ? 1 : 0;
    case kGpuDirectRdmaWritesOrdering:
      return rdma ? static_cast<int>(cu::bits(cu::FlushRdmaScope::kOwner)) : 0;
    case kHostMemoryPoolsSupported:
      return settings.version >= 13000 ? 1 : 0;
    default:
      return figure_of(settings.card, what);
  }
}

}  // namespace
}  // namespace cudasim::device_attributes

namespace cudasim {

int attribute_of(const Machine& m, const DeviceState& device, cu::DeviceAttribute what) {
  return device_attributes::find(m, device, what);
}

}  // namespace cudasim
