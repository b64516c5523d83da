// Takes the place of CuPy's header of this name when cupy.cuda.thrust is compiled for dry runs. Nothing is sorted; the temporary
// memory of a sort is taken through CuPy and given back, because it counts at the peak.
//
// How much that is, is an assumption: a second copy of what is sorted, and nothing for Thrust's counts, which are small. Thrust
// sorts numbers in one dimension by radix, between two buffers, and all else by merging into a second buffer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "arena_dtypes.h"

extern "C" char* cupy_malloc(void*, std::size_t);
extern "C" int cupy_free(void*, char*);

namespace arena_dryrun {

inline void take_and_give_back(void* memory, std::size_t bytes) {
  if (bytes == 0) return;
  char* taken = cupy_malloc(memory, bytes);
  if (taken == nullptr) throw std::bad_alloc();
  cupy_free(memory, taken);
}

inline std::size_t count_of(const std::vector<std::ptrdiff_t>& shape) {
  std::size_t count = 1;
  for (std::ptrdiff_t length : shape) count *= static_cast<std::size_t>(length);
  return count;
}

// With more than one dimension an element is sorted together with the number of its row.
inline std::size_t key_bytes(int dtype, std::size_t dimensions) {
  const std::size_t bytes = arena_bytes_of(dtype);
  return dimensions == 1 ? bytes : 2 * std::max(bytes, sizeof(std::size_t));
}

}  // namespace arena_dryrun

inline void thrust_sort(int dtype, void*, std::size_t*, const std::vector<std::ptrdiff_t>& shape, std::intptr_t,
                        void* memory) {
  using namespace arena_dryrun;
  take_and_give_back(memory, count_of(shape) * key_bytes(dtype, shape.size()));
}

inline void thrust_argsort(int dtype, std::size_t*, void*, void*, const std::vector<std::ptrdiff_t>& shape,
                           std::intptr_t, void* memory) {
  using namespace arena_dryrun;
  take_and_give_back(memory, count_of(shape) * (key_bytes(dtype, shape.size()) + sizeof(std::size_t)));
}

// The indices are sorted once for each of the keys.
inline void thrust_lexsort(int, std::size_t*, void*, std::size_t keys, std::size_t count, std::intptr_t, void* memory) {
  for (std::size_t i = 0; i < keys; ++i) arena_dryrun::take_and_give_back(memory, count * sizeof(std::size_t));
}
