// What a device is: the figures that programs ask for to choose kernels and sizes. The one that is built in has those of an
// A100.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cudasim {

struct Card {
  std::string name = "Simulated CUDA device";
  std::optional<std::uint64_t> memory;  // bytes, as cuDeviceTotalMem reports them
  int major = 8, minor = 0;             // compute capability
  int multiprocessors = 108;
  int threads_per_multiprocessor = 2048;
  int blocks_per_multiprocessor = 32;
  int shared_per_block = 48 << 10;
  int shared_per_block_optin = 163 << 10;
  int shared_per_multiprocessor = 164 << 10;
  int registers_per_multiprocessor = 64 << 10;
  int l2_cache = 40 << 20;
  int clock_khz = 1'410'000;
  int memory_clock_khz = 1'215'000;
  int bus_width = 5120;
  bool integrated = false;
  std::uint64_t context = 0;  // bytes that contexts take on a device
  std::string path;           // of its profile; empty for the one that is built in

  int capability() const { return major * 10 + minor; }
  // What every block takes of shared memory beside its own.
  int reserved_shared() const { return major >= 8 ? 1024 : 0; }
};

// The card of a profile, by its path; the one that is built in for an empty text. Throws std::invalid_argument that says
// what is wrong with which line. A profile that was read before and is gone gives what it had, so that a setting that was
// in force can always be put back.
Card find_card(std::string_view path);

}  // namespace cudasim
