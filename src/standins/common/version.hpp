// Versions that the libraries report. Each belongs to the CUDA release that the library is built for
// (STANDIN_CUDA_MAJOR): 13 or 12.
#pragma once

#include "standins/common/objects.hpp"

namespace standins {

#if STANDIN_CUDA_MAJOR == 12
constexpr int kCudartVersion = 12090;
#else
constexpr int kCudartVersion = 13020;
#endif

// One of two values, by the CUDA release.
constexpr int by_release(int cuda12, int cuda13) { return kCudartVersion < 13000 ? cuda12 : cuda13; }

constexpr int library_property(Word property, int version, int major_scale = 10000, int minor_scale = 100) {
  switch (static_cast<int>(property)) {
    case 0:
      return version / major_scale;
    case 1:
      return version % major_scale / minor_scale;
    default:
      return version % minor_scale;
  }
}

}  // namespace standins
