// Takes the place of CuPy's header of this name when cupy.random._generator_api is compiled for dry runs. CuPy's functions launch
// kernels through a CUDA runtime of their own; these launch nothing, so what they would write stays as it is. None of them
// takes memory: the generator's state and the results are arrays that CuPy makes before.
#pragma once

#include <sys/types.h>

#include <cstdint>

struct rk_binomial_state {
  int counters[3];
  double numbers[16];
};

inline void init_curand_generator(int, intptr_t, uint64_t, ssize_t, intptr_t) {}

// The generator and its state, where the numbers go and how many there are, and the stream; then what the distribution needs.
#define ARENA_SKIPPED(name, ...) \
  inline void name(int, intptr_t, ssize_t, intptr_t, ssize_t, intptr_t __VA_OPT__(, ) __VA_ARGS__) {}

ARENA_SKIPPED(random_uniform)
ARENA_SKIPPED(random_uniform_float)
ARENA_SKIPPED(raw)
ARENA_SKIPPED(exponential)
ARENA_SKIPPED(standard_normal)
ARENA_SKIPPED(standard_normal_float)
ARENA_SKIPPED(geometric, intptr_t)
ARENA_SKIPPED(logseries, intptr_t)
ARENA_SKIPPED(poisson, intptr_t)
ARENA_SKIPPED(standard_gamma, intptr_t)
ARENA_SKIPPED(beta, intptr_t, intptr_t)
ARENA_SKIPPED(hypergeometric, intptr_t, intptr_t, intptr_t)
ARENA_SKIPPED(binomial, intptr_t, intptr_t, intptr_t)
// CuPy 13 declares the bounds as signed.
ARENA_SKIPPED(interval_32, uint32_t, uint32_t)
ARENA_SKIPPED(interval_32, int32_t, int32_t)
ARENA_SKIPPED(interval_64, uint64_t, uint64_t)
ARENA_SKIPPED(interval_64, int64_t, int64_t)

#undef ARENA_SKIPPED
