// Takes the place of CuPy's header of this name when cupy.cuda.cub is compiled for dry runs. Nothing is computed. CuPy asks for the
// size of the workspace, takes it, and gives it back, as on a GPU.
//
// The sizes are assumptions, made from how CUB works: a reduction has a partial result for each thread block, a scan has a state
// for each tile, and a histogram has counters for each thread block. How many blocks there are depends on the GPU; here it is a
// large one. CUB answers 1 where it needs no workspace.
#pragma once

#include <algorithm>
#include <cstddef>

#include "arena_dtypes.h"

typedef struct CUstream_st* cudaStream_t;

#define CUPY_CUB_SUM 0
#define CUPY_CUB_MIN 1
#define CUPY_CUB_MAX 2
#define CUPY_CUB_ARGMIN 3
#define CUPY_CUB_ARGMAX 4
#define CUPY_CUB_CUMSUM 5
#define CUPY_CUB_CUMPROD 6
#define CUPY_CUB_PROD 7

namespace arena_dryrun {

constexpr std::size_t kTileBytes = 16 << 10;  // of a reduction or scan
constexpr std::size_t kReducingBlocks = 4096;
constexpr std::size_t kCountingBlocks = 512;
constexpr std::size_t kSamplesPerTile = 6144;  // of a histogram

inline std::size_t tiles(std::size_t count, std::size_t per_tile) { return (count + per_tile - 1) / per_tile; }

inline std::size_t histogram(std::size_t levels, std::size_t samples) {
  const std::size_t bins = levels > 1 ? levels - 1 : 1;
  return std::max<std::size_t>(1,
                               std::min(tiles(samples, kSamplesPerTile), kCountingBlocks) * bins * sizeof(long long));
}

}  // namespace arena_dryrun

inline std::size_t cub_device_reduce_get_workspace_size(void*, void*, int count, cudaStream_t, int operation,
                                                        int dtype) {
  using namespace arena_dryrun;
  const std::size_t bytes = arena_bytes_of(dtype);
  const std::size_t blocks = std::min(tiles(count * bytes, kTileBytes), kReducingBlocks);
  if (blocks <= 1) return 1;
  const bool has_position = operation == CUPY_CUB_ARGMIN || operation == CUPY_CUB_ARGMAX;
  return blocks * (has_position ? 2 * std::max<std::size_t>(bytes, 4) : bytes);
}

inline std::size_t cub_device_segmented_reduce_get_workspace_size(void*, void*, int, int, cudaStream_t, int, int) {
  return 1;
}

inline std::size_t cub_device_scan_get_workspace_size(void*, void*, int count, cudaStream_t, int, int dtype) {
  using namespace arena_dryrun;
  const std::size_t bytes = arena_bytes_of(dtype);
  // Its own sum, the sum up to it, and which of the two is there already. The first tiles have 32 before them.
  return (tiles(count * bytes, kTileBytes) + 32) * (2 * bytes + 4);
}

inline std::size_t cub_device_histogram_range_get_workspace_size(void*, void*, int levels, void*, std::size_t samples,
                                                                 cudaStream_t, int) {
  return arena_dryrun::histogram(levels, samples);
}

inline std::size_t cub_device_histogram_even_get_workspace_size(void*, void*, int levels, int, int, std::size_t samples,
                                                                cudaStream_t, int) {
  return arena_dryrun::histogram(levels, samples);
}

// CuPy 13 alone: a row and a sum for each block.
inline std::size_t cub_device_spmv_get_workspace_size(void*, void*, void*, void*, void*, int rows, int, int nonzeros,
                                                      cudaStream_t, int dtype) {
  using namespace arena_dryrun;
  const std::size_t count = static_cast<std::size_t>(rows) + static_cast<std::size_t>(nonzeros);
  return tiles(count * arena_bytes_of(dtype), kTileBytes) * 2 * std::max<std::size_t>(arena_bytes_of(dtype), 4) + 1;
}

inline void cub_device_reduce(void*, std::size_t&, void*, void*, int, cudaStream_t, int, int) {}
inline void cub_device_segmented_reduce(void*, std::size_t&, void*, void*, int, int, cudaStream_t, int, int) {}
inline void cub_device_spmv(void*, std::size_t&, void*, void*, void*, void*, void*, int, int, int, cudaStream_t, int) {}
inline void cub_device_scan(void*, std::size_t&, void*, void*, int, cudaStream_t, int, int) {}
inline void cub_device_histogram_range(void*, std::size_t&, void*, void*, int, void*, std::size_t, cudaStream_t, int) {}
inline void cub_device_histogram_even(void*, std::size_t&, void*, void*, int, int, int, std::size_t, cudaStream_t,
                                      int) {}
