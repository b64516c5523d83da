// Images of device code: which kernels and variables are in one, as far as it says. Reads cubins (ELF), PTX and fat
// binaries from memory of unknown length, so every reader stops where the image itself says that it ends. Knows
// nothing of modules, and runs nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "abi/types.hpp"

namespace cudasim {

namespace cu = arena::cu;

struct KernelParam {
  std::uint32_t offset = 0;
  std::uint32_t size = 0;
};

struct KernelInfo {
  std::string name;
  int registers = 0;    // per thread
  int shared = 0;       // static bytes per block
  int local = 0;        // bytes per thread
  int max_threads = 0;  // by its launch bounds; 0: without
  int ptx_version = 0;
  int binary_version = 0;
  std::optional<std::vector<KernelParam>> params;  // nothing: not known
};

enum class VariableKind { kGlobal, kConstant, kManaged };

struct VariableInfo {
  std::string name;
  std::uint64_t size = 0;
  VariableKind kind = VariableKind::kGlobal;
  std::string initial;  // its first bytes; the rest are zero
};

struct Image {
  std::vector<KernelInfo> kernels;      // by name
  std::vector<VariableInfo> variables;  // by name
  // Nothing is known of what is in it (it is compressed, or was never compiled): whatever is asked for is there.
  bool opaque = false;
  int constant = 0;      // bytes of user-defined constants
  int architecture = 0;  // 80 for 8.0; 0: not known

  const KernelInfo* kernel(std::string_view name) const;
  const VariableInfo* variable(std::string_view name) const;
};
using ImageRef = std::shared_ptr<const Image>;

// What an image that says nothing of itself is taken to have.
inline constexpr int kAssumedRegisters = 32;
inline constexpr std::uint64_t kAssumedVariableSize = 1024;

// Thrown for an image that cannot be loaded.
struct BadImage {
  cu::Result code;
};

// Reads an image for a device of that compute capability (80 for 8.0). Throws BadImage.
ImageRef read_image(const void* image, int capability);
// Only a fat binary, or what points to one.
ImageRef read_fat_binary(const void* image, int capability);

// The formats.
inline constexpr std::string_view kSkippedMark = "arena-skipped-kernel";
namespace cubin {
Image read(const unsigned char* image);
int architecture(const unsigned char* image);
}  // namespace cubin
namespace ptx {
Image read(std::string_view text);  // without its final zero
}

// Device code of one architecture runs on later ones of the same generation; PTX on all later ones.
inline bool cubin_runs_on(int architecture, int capability) {
  return architecture / 10 == capability / 10 && architecture <= capability;
}

}  // namespace cudasim
