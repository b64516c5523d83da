// Launches: work in a stream that has no effect, because no code runs here. All that a launch asks for is checked as on a
// device.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "cudasim/api/modules.hpp"
#include "cudasim/machine/submit.hpp"

namespace cudasim {

// A launch as the program asked for it.
struct Launch {
  cu::Function function = nullptr;
  std::array<unsigned, 3> grid{}, block{};
  unsigned shared = 0;
  std::array<unsigned, 3> cluster{};  // zeros: none was asked for
  bool cooperative = false;
  void** params = nullptr;
  void** extra = nullptr;

  std::uint64_t threads() const { return std::uint64_t{block[0]} * block[1] * block[2]; }
  std::uint64_t blocks() const { return std::uint64_t{grid[0]} * grid[1] * grid[2]; }
};

// What a kernel was given, copied when it was launched or put into a graph. Nothing if the image does not say what its
// parameters are.
using Arguments = std::optional<std::vector<char>>;

// Checks a launch against the function and its device. Throws Refusal.
void check_launch(const Machine& m, const FunctionState& function, const Launch& launch);
Arguments copy_arguments(const FunctionState& function, const Launch& launch);
// The work that a launch is.
Work launch_work(std::string_view name, const FunctionState& function);

// How many blocks of a kernel fit on a multiprocessor at a time.
int blocks_that_fit(const Card& card, const KernelInfo& kernel, std::uint64_t threads, std::uint64_t dynamic_shared);

}  // namespace cudasim
