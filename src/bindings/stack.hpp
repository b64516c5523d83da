// The stack of another thread that sleeps: the functions that led there.
#pragma once

#include <cstdint>
#include <vector>

namespace arena {

struct Frame {
  std::uint64_t address;   // the return address into it
  std::uint64_t function;  // where the function begins
};

struct Walk {
  std::vector<Frame> frames;    // innermost first
  bool reached_bottom = false;  // otherwise the caller of the last frame is unknown
};

// Exact, by the compiler's tables for exceptions: words that earlier calls left on the stack are not mistaken for callers. Only
// the thread's stack pointer and address are known. Where that is not enough (frame pointers, other processors), the walk ends
// early.
Walk walk_stack(std::uint64_t stack_pointer, std::uint64_t address);

}  // namespace arena
