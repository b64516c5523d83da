// A CUDA driver in which every function succeeds and does nothing, compiled by test_driver.py with one thing wrong.
//
// The test gives the functions as lists: FUNCTIONS, of F(symbol), to define; ROWS, of R(name, symbol), that
// cuGetProcAddress knows. LOOKUP is the version of cuGetProcAddress to have: 0 for none, 1 or 2.
// HIDDEN as `static` leaves cuGetProcAddress as the only way to find them.
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#ifndef HIDDEN
#define HIDDEN
#endif

// For the test to read.
int stub_inits, stub_contexts_held, stub_contexts_current;

int cuInit(unsigned flags) { return ++stub_inits, (int)flags + INIT_RESULT; }

HIDDEN int cuDriverGetVersion(int* version) { return *version = VERSION, VERSION_RESULT; }

HIDDEN int cuGetErrorName(int error, const char** name) { return *name = error == 4242 ? "STUB_OWN_ERROR" : NULL, 0; }

HIDDEN int cuDeviceGetCount(int* count) { return *count = COUNT, 0; }

HIDDEN int cuDeviceTotalMem_v2(size_t* bytes, int device) { return *bytes = (size_t)TOTAL, device; }

HIDDEN int cuDevicePrimaryCtxRetain(void** context, int device) {
  return *context = &stub_contexts_held, ++stub_contexts_held, device;
}

HIDDEN int cuDevicePrimaryCtxRelease_v2(int device) { return --stub_contexts_held, device; }

HIDDEN int cuCtxPushCurrent_v2(void* context) { return ++stub_contexts_current, context ? 0 : 1; }

HIDDEN int cuCtxPopCurrent_v2(void** context) { return *context = NULL, --stub_contexts_current, 0; }

HIDDEN int cuMemGetInfo_v2(size_t* free, size_t* total) {
  usleep(SLEEP_MICROSECONDS);
  return *free = 512, *total = (size_t)TOTAL, MEM_INFO_RESULT;
}

#define F(symbol) \
  HIDDEN int symbol(void) { return 0; }
FUNCTIONS
#undef F

#if LOOKUP
static int find(const char* name, void** function) {
#define R(known, symbol) \
  if (strcmp(name, #known) == 0) return *function = (void*)symbol, 0;
  ROWS
#undef R
  return *function = NULL, 0;
}

#if LOOKUP == 1
int cuGetProcAddress(const char* name, void** function, int version, unsigned long long flags) {
  return (void)version, (void)flags, find(name, function);
}
#else
int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags, int* found) {
  return (void)version, (void)flags, *found = 0, find(name, function);
}
#endif
#endif
