// nvJitLink: cuSPARSE and cuSOLVER depend on it, so loaders look for it even where nothing is linked.
#include <cstring>

#include "standins/common/behaviours.hpp"
#include "standins/common/version.hpp"

namespace {

using namespace standins;

constexpr int kNoHandle = 3;                                // NVJITLINK_ERROR_INVALID_INPUT
constexpr int kBadArgument = 3;                             // NVJITLINK_ERROR_INVALID_INPUT
constexpr char kImage[] = "arena-skipped-kernel linked\n";  // what NVRTC's stand-in begins with, too

int get_image(Word linker, Word buffer) {
  if (find_object(linker) == nullptr) return kNoHandle;
  if (buffer == 0) return kBadArgument;
  std::memcpy(reinterpret_cast<void*>(buffer), kImage, sizeof kImage);
  return 0;
}

}  // namespace

#include "standins/nvjitlink/nvjitlink.def"

STANDIN_FUNCTION(nvJitLinkDestroy) {
  if (a0 == 0) return kNoHandle;
  auto& linker = *reinterpret_cast<Word*>(a0);
  if (!remove_object(linker)) return kNoHandle;
  linker = 0;
  return 0;
}

STANDIN_FUNCTION(nvJitLinkGetLinkedCubin) { return get_image(a0, a1); }
STANDIN_FUNCTION(nvJitLinkGetLinkedPtx) { return get_image(a0, a1); }
STANDIN_FUNCTION(nvJitLinkGetLinkedLTOIR) { return get_image(a0, a1); }

STANDIN_FUNCTION(nvJitLinkVersion) {
  const bool is_written = write<unsigned>(a0, kCudartVersion / 1000) && write<unsigned>(a1, kCudartVersion % 1000 / 10);
  return is_written ? 0 : kBadArgument;
}

#define ALIAS(name, release) STANDIN_EXPORT int __##name##_##release(STANDIN_ARGUMENTS) __attribute__((alias(#name)))
#if STANDIN_CUDA_MAJOR == 12
#define ALIASES(name) \
  ALIAS(name, 12_0);  \
  ALIAS(name, 12_1);  \
  ALIAS(name, 12_2);  \
  ALIAS(name, 12_3);  \
  ALIAS(name, 12_4);  \
  ALIAS(name, 12_5);  \
  ALIAS(name, 12_6);  \
  ALIAS(name, 12_7);  \
  ALIAS(name, 12_8);  \
  ALIAS(name, 12_9);
#else
#define ALIASES(name) \
  ALIAS(name, 13_0);  \
  ALIAS(name, 13_1);  \
  ALIAS(name, 13_2);  \
  ALIAS(name, 13_3);  \
  ALIAS(name, 13_4);  \
  ALIAS(name, 13_5);  \
  ALIAS(name, 13_6);  \
  ALIAS(name, 13_7);  \
  ALIAS(name, 13_8);  \
  ALIAS(name, 13_9);
#endif
ALIASES(nvJitLinkCreate)
ALIASES(nvJitLinkDestroy)
ALIASES(nvJitLinkAddData)
ALIASES(nvJitLinkAddFile)
ALIASES(nvJitLinkComplete)
ALIASES(nvJitLinkGetLinkedCubinSize)
ALIASES(nvJitLinkGetLinkedCubin)
ALIASES(nvJitLinkGetLinkedPtxSize)
ALIASES(nvJitLinkGetLinkedPtx)
ALIASES(nvJitLinkGetLinkedLTOIRSize)
ALIASES(nvJitLinkGetLinkedLTOIR)
ALIASES(nvJitLinkGetErrorLogSize)
ALIASES(nvJitLinkGetErrorLog)
ALIASES(nvJitLinkGetInfoLogSize)
ALIASES(nvJitLinkGetInfoLog)
