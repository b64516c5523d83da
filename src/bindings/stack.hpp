// The stack of another thread, which sleeps: through which functions it came there.
#pragma once

#include <cstdint>
#include <vector>

namespace arena {

struct Frame {
  std::uint64_t address;   // where it goes on when what it called returns
  std::uint64_t function;  // where the function begins
};

struct Walk {
  std::vector<Frame> frames;    // innermost first
  bool reached_bottom = false;  // or it is not known who called the last one
};

// Exact, by what the compiler wrote down for exceptions: words that earlier calls left on the stack are not taken for
// callers. All that is known of the thread is its stack pointer and where it is. Where that is not enough (frame pointers,
// other processors) the walk ends early.
Walk walk_stack(std::uint64_t stack_pointer, std::uint64_t address);

}  // namespace arena
