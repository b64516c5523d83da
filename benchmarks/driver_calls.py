"""What the simulated driver's memory calls cost, beside the bare system calls they are built on.

    python benchmarks/driver_calls.py [--rounds N] [--json FILE]

Prints, for untouched handles of 2 MiB and of 64 MiB, the cost of create, map, set access, unmap and release, and in the
same run that of mapping and hiding the same range with mmap alone. Figures are the best of several rounds. The question
it answers: do map and unmap cost at most 5 times the bare mmap?
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import sysconfig
import tempfile
from pathlib import Path
from subprocess import run

MIB = 1 << 20
LIMIT = 5.0

# The loops are in C: a call through ctypes would cost more than what is measured.
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;
struct location { unsigned type; int id; };
struct prop { unsigned type, handles; struct location where; void* win32; unsigned char flags[8]; };
struct access { struct location where; unsigned flags; };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}
static void fail(const char* what) { fprintf(stderr, "%s failed\n", what); exit(1); }
#define DO(call) if ((call) != 0) fail(#call)
#define BEST(slot, code) do { double t = now(); code; t = (now() - t) / n; \
  if (!round || t < best[slot]) best[slot] = t; } while (0)

int main(int argc, char** argv) {
  (void)argc;
  void* lib = dlopen(argv[1], RTLD_NOW);
  if (!lib) fail(dlerror());
  u64 size = strtoull(argv[2], 0, 10);
  int n = atoi(argv[3]), rounds = atoi(argv[4]);
  int (*init)(unsigned) = dlsym(lib, "cuInit");
  int (*reserve)(u64*, size_t, size_t, u64, u64) = dlsym(lib, "cuMemAddressReserve");
  int (*create)(u64*, size_t, const struct prop*, u64) = dlsym(lib, "cuMemCreate");
  int (*release)(u64) = dlsym(lib, "cuMemRelease");
  int (*map)(u64, size_t, size_t, u64, u64) = dlsym(lib, "cuMemMap");
  int (*unmap)(u64, size_t) = dlsym(lib, "cuMemUnmap");
  int (*allow)(u64, size_t, const struct access*, size_t) = dlsym(lib, "cuMemSetAccess");
  struct prop prop = {1, 0, {1, 0}, 0, {0}};
  struct access access = {{1, 0}, 3};
  u64 address, *handles = malloc(n * sizeof *handles);
  double best[7];
  DO(init(0));
  DO(reserve(&address, n * size, 0, 0, 0));
  char* bare = mmap(0, n * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  int fd = memfd_create("bare", 0);
  if (bare == MAP_FAILED || fd < 0 || ftruncate(fd, n * size)) fail("bare mmap");
  for (int round = 0; round < rounds; ++round) {
    BEST(0, for (int i = 0; i < n; ++i) DO(create(&handles[i], size, &prop, 0)));
    BEST(1, for (int i = 0; i < n; ++i) DO(map(address + i * size, size, 0, handles[i], 0)));
    BEST(2, for (int i = 0; i < n; ++i) DO(allow(address + i * size, size, &access, 1)));
    BEST(3, for (int i = 0; i < n; ++i) DO(unmap(address + i * size, size)));
    BEST(4, for (int i = 0; i < n; ++i) DO(release(handles[i])));
    BEST(5, for (int i = 0; i < n; ++i) if (mmap(bare + i * size, size, PROT_READ | PROT_WRITE,
         MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, i * size) == MAP_FAILED) fail("mmap"));
    BEST(6, for (int i = 0; i < n; ++i) if (mmap(bare + i * size, size, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) fail("mmap"));
  }
  for (int i = 0; i < 7; ++i) printf("%.1f\n", best[i]);
  return 0;
}
"""
NAMES = ("create", "map", "set access", "unmap", "release", "bare mmap", "bare hide")


def compile_loops(folder: Path) -> Path:
    source, program = folder / "loops.c", folder / "loops"
    source.write_text(SOURCE)
    compiler = os.environ.get("CC", "cc")
    run([compiler, "-O2", "-w", str(source), "-o", str(program), "-ldl"], check=True)
    return program


def measure(program: Path, size: int, count: int, rounds: int) -> dict[str, float]:
    from arena import sim

    command = [str(program), str(sim.library()), str(size), str(count), str(rounds)]
    environment = {**os.environ, "CUDASIM_MEMORY": "256GiB"}
    out = run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return dict(zip(NAMES, map(float, out.split()), strict=True))


def cost(row: dict[str, float], names: str) -> float:
    return sum(row[name] for name in names.split(" + "))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args()
    cores, python = os.cpu_count(), sysconfig.get_python_version()
    print(f"{platform.machine()}, Linux {platform.release()}, {cores} cores, Python {python}")
    print(f"nanoseconds a call, best of {options.rounds} rounds, memory untouched\n")
    with tempfile.TemporaryDirectory() as folder:
        program = compile_loops(Path(folder))
        figures = {size: measure(program, size * MIB, 1000, options.rounds) for size in (2, 64)}
    print(f"{'':<14}" + "".join(f"{size:>7} MiB" for size in figures))
    for name in NAMES:
        print(f"{name:<14}" + "".join(f"{row[name]:>11.0f}" for row in figures.values()))
    # A mapping can be used after both calls, so both are compared with the one mmap that does as much.
    ratios = {
        "map ÷ bare mmap": ("map", "bare mmap"),
        "map + set access ÷ bare mmap": ("map + set access", "bare mmap"),
        "unmap ÷ bare mmap": ("unmap", "bare mmap"),
        "unmap ÷ bare hide": ("unmap", "bare hide"),
    }
    worst = 0.0
    print()
    for label, (top, bottom) in ratios.items():
        values = [cost(row, top) / row[bottom] for row in figures.values()]
        worst = max(worst, *values)
        print(f"{label:<29}" + "".join(f"{value:>9.2f}" for value in values))
    if options.json:
        options.json.write_text(json.dumps({f"{size} MiB": row for size, row in figures.items()}, indent=1) + "\n")
        print(f"\nwrote {options.json}")
    print(f"\nthe bound is {LIMIT:g}: {'kept' if worst <= LIMIT else 'BROKEN'}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
