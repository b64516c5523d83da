// The functions of libcudasim that know which bytes of device memory are known. The library was loaded before PyTorch.
#pragma once

#include <cstdint>

namespace arena::values {

enum class State : int { kUnknown = 0, kKnown = 1, kZero = 2 };  // as in cudasim.h
enum class Knowledge : int { kNone = 0, kAll = 1, kSome = 2 };

using Read = void (*)(unsigned long long address, unsigned long long size, unsigned long long unknown);

struct Marks {
  void (*mark)(unsigned long long address, unsigned long long size, int state);
  int (*query)(unsigned long long address, unsigned long long size);
  void (*read)(unsigned long long address, unsigned long long size, unsigned char* known);
  void (*write)(unsigned long long address, unsigned long long size, const unsigned char* known);
  void (*settle)(unsigned long long address, unsigned long long size);
  int (*drain)(void* stream);
  void (*enter)();
  void (*leave)();
  void (*expect)(const void* bytes, unsigned long long size);
  void (*forget)();
};

// Looks the functions up. False if this process has no simulated driver.
bool find_marks();
extern Marks marks;

// Launches of this thread do not change marks while one lives: whoever launches does.
class Launching {
 public:
  Launching() { marks.enter(); }
  ~Launching() { marks.leave(); }
  Launching(const Launching&) = delete;
  Launching& operator=(const Launching&) = delete;
};

}  // namespace arena::values
