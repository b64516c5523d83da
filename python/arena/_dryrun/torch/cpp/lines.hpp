// Which line of the program a thread of Python is at.
#pragma once

#include <cstdint>
#include <string>

namespace arena::ledger {

// Folders, each ending with a separator, by what their files are; whatever lies elsewhere is the program's own.
struct Folders {
  std::string frameworks;  // separated by newlines
  std::string installed;   // other libraries: shown where there is no line of the program's own, or with more lines
  std::string python;      // itself, and arena
  std::string optimizers;  // in PyTorch
};
void set_lines(const Folders& folders, int depth);

struct Where {
  std::uint32_t line = 0;          // 0: none
  std::uintptr_t instruction = 0;  // of the innermost frame: which operation this is
  bool is_step = false;            // below an optimizer's step
  bool is_init = false;            // where PyTorch's optimizers create their state
};

// Needs Python's lock. While autograd runs `node`, the lines that called backward() do not count.
Where where(bool in_node);

// The lines as JSON: a list of stacks, innermost first, each a list of [file, line, function].
std::string lines_as_json();
std::string quoted(const std::string& text);

}  // namespace arena::ledger
