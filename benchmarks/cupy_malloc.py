"""What an allocation costs under CuPy: its own MemoryPool beside arena.Arena, in one run.

    python benchmarks/cupy_malloc.py [--rounds N] [--json FILE]

Prints nanoseconds for one malloc and its release, and for creating and dropping one cupy.empty: with the same size over
and over, and with mixed sizes in turn and 256 of them live. The two pools take turns, and figures are the best of
several rounds. All memory is reserved after the first round, so this measures bookkeeping, not the driver.

CuPy's own pool needs a CUDA runtime: a GPU with its driver, or a CuPy whose runtime runs on the host. Without one, only
the arena's figures are printed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import cupy

import arena

KIB, MIB = 1 << 10, 1 << 20
LIVE = 256
SEED = 1
OWN = "MemoryPool"
TITLES = {"malloc": "malloc", "empty": "cupy.empty"}
BOUNDS = {"malloc": 0.45, "empty": 0.85}
MIXED_BOUND = 0.5  # of malloc with mixed sizes
Make = Callable[[int], Any]


def one_size(make: Make, size: int, count: int) -> float:
    start = time.perf_counter_ns()
    for _ in repeat(None, count):
        make(size)
    return (time.perf_counter_ns() - start) / count


def mixed_sizes(make: Make, sizes: list[int]) -> float:
    live: list[Any] = [make(size) for size in sizes[:LIVE]]
    place = 0
    start = time.perf_counter_ns()
    for size in sizes:
        live[place] = None
        live[place] = make(size)
        place = (place + 37) % LIVE
    return (time.perf_counter_ns() - start) / len(sizes)


def cases(count: int) -> dict[str, Callable[[Make], float]]:
    chance = random.Random(SEED)
    sizes = [int(2 ** chance.uniform(9, 22)) for _ in range(count)]
    fixed = {"512 B": 512, "64 KiB": 64 * KIB, "4 MiB": 4 * MIB}
    found: dict[str, Callable[[Make], float]] = {
        name: lambda make, size=size: one_size(make, size, count) for name, size in fixed.items()
    }
    return {**found, f"{LIVE} live": lambda make: mixed_sizes(make, sizes)}


def cupys_own() -> Make | None:
    pool = cupy.cuda.MemoryPool()
    try:
        pool.malloc(512)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        print(f"CuPy's own pool cannot run here ({error}).")
        print("It needs a CUDA runtime: a GPU with its driver, or a CuPy whose runtime runs on the host.\n")
        return None
    return pool.malloc  # type: ignore[no-any-return]


def measure(pools: dict[str, Make], rounds: int, count: int) -> dict[str, dict[str, dict[str, float]]]:
    best: dict[str, dict[str, dict[str, float]]] = {
        what: {case: dict.fromkeys(pools, float("inf")) for case in cases(1)} for what in BOUNDS
    }
    for _ in range(rounds):
        for case, run in cases(count).items():
            for name, malloc in pools.items():
                with cupy.cuda.using_allocator(malloc):
                    found = {"malloc": run(malloc), "empty": run(lambda size: cupy.empty(size, "u1"))}
                for what, nanoseconds in found.items():
                    best[what][case][name] = min(best[what][case][name], nanoseconds)
    return best


def bound_of(what: str, case: str) -> float | None:
    if not case.endswith("live"):
        return BOUNDS[what]
    return MIXED_BOUND if what == "malloc" else None


def show(what: str, rows: dict[str, dict[str, float]]) -> bool:
    """Print a table; return whether a figure of arena.Arena ÷ that of CuPy's own pool is above its bound."""
    names = list(next(iter(rows.values())))
    compared = names[0] == OWN
    title = TITLES[what]
    print(f"{title:<12}" + "".join(f"{name:>14}" for name in names) + ("   ÷ CuPy's" if compared else ""))
    broken = False
    for case, row in rows.items():
        line = f"{case:<12}" + "".join(f"{value:>14.0f}" for value in row.values())
        if compared:
            ratios = [row[name] / row[OWN] for name in names[1:]]
            line += "   " + "  ".join(f"{ratio:.2f}" for ratio in ratios)
            if (bound := bound_of(what, case)) is not None:
                broken |= ratios[0] > bound
                line += f"   ≤ {bound:g} {'kept' if ratios[0] <= bound else 'BROKEN'}"
        print(line)
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--count", type=int, default=5000, help="allocations in a round")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args()
    pool = arena.Arena(cap="2GiB")
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, CuPy {cupy.__version__}")
    print(f"nanoseconds, best of {options.rounds} rounds of {options.count}, seed {SEED}\n")
    own = cupys_own()
    pools = {**({OWN: own} if own else {}), "Arena": pool.malloc, "arena.malloc": arena.malloc}
    gc.disable()
    best = measure(pools, options.rounds, options.count)
    broken = False
    for what in BOUNDS:
        broken |= show(what, best[what])
        print()
    if options.json:
        options.json.write_text(json.dumps(best, indent=1) + "\n")
        print(f"wrote {options.json}")
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
