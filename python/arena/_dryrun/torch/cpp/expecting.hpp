// Numbers that an operation reads from the device although only the host knows them.
#pragma once

#include <cstdint>

#include "marks.hpp"

namespace arena::values {

// Reads of the device inside an operation that yield a number which is known on the host only.
class Expecting {
 public:
  explicit Expecting(std::int64_t count) : before_(current) {
    current = count;
    const std::int32_t narrow = static_cast<std::int32_t>(count);
    marks.expect(&count, sizeof count);
    marks.expect(&narrow, sizeof narrow);
  }
  ~Expecting() {
    marks.forget();
    current = before_;
  }
  Expecting(const Expecting&) = delete;
  Expecting& operator=(const Expecting&) = delete;
  static inline thread_local std::int64_t current = -1;  // -1: none

 private:
  std::int64_t before_;
};

}  // namespace arena::values
