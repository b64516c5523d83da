#pragma once

#include <atomic>

namespace arena::values {

enum class Mode : int { kControl = 1, kAll = 2 };
extern std::atomic<Mode> mode;

// Reads of this thread are noted by the wrappers, and need not be noted by the driver.
class Reading {
 public:
  Reading() { ++depth; }
  ~Reading() { --depth; }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  static bool is_on() { return depth > 0; }

 private:
  static thread_local int depth;
};

// Wraps the kernels of all operators that have one for the device and are not wrapped yet. Returns how many.
int wrap_all();

}  // namespace arena::values
