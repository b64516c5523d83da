// The bytes of an element, by CuPy's number for its dtype.
#pragma once

#include <cstddef>

inline std::size_t arena_bytes_of(int dtype) {
  constexpr std::size_t bytes[] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 4, 8, 8, 16, 1};
  return dtype >= 0 && dtype < 14 ? bytes[dtype] : 8;
}
