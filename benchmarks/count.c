/* What instructions.py needs in the process that valgrind runs: it switches the counting on and off, so that only the calls in
   question are counted, and calls the functions that PyTorch calls without Python between them. */
#include <stddef.h>
#include <valgrind/callgrind.h>

void begin_count(void) {
  CALLGRIND_START_INSTRUMENTATION;
  CALLGRIND_ZERO_STATS;
}

void end_count(void) {
  CALLGRIND_DUMP_STATS;
  CALLGRIND_STOP_INSTRUMENTATION;
}

typedef void* (*allocate_t)(size_t, int, void*);
typedef void (*free_t)(void*, size_t, int, void*);

void torch_pairs(allocate_t allocate, free_t give_back, size_t size, int count) {
  for (int i = 0; i < count; ++i) give_back(allocate(size, 0, NULL), size, 0, NULL);
}
