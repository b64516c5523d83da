// NVIDIA's header of this name is in a package of its own, for two functions.
#pragma once

#include <cuda_runtime_api.h>

extern "C" cudaError_t CUDARTAPI cudaProfilerStart(void);
extern "C" cudaError_t CUDARTAPI cudaProfilerStop(void);
