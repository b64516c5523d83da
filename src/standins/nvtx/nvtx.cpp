// NVTX: only the numbers that a program gets back are kept: the depth of the ranges of a thread, and a new one for each
// range that is started.
#include <atomic>

#include "standins/common/behaviours.hpp"

namespace {

thread_local int depth = 0;

int push() { return depth++; }                  // the level of the new range
int pop() { return depth > 0 ? --depth : -2; }  // the level that ends, or NVTX's error for none

std::uint64_t next_range() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

#include "standins/nvtx/nvtx.def"
