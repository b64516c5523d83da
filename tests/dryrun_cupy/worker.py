"""Runs every operation in a dry run, with one allocator, and prints what was found as JSON.

Started by test_cupy_operations.py in a process that has the libraries for dry runs: ``python -m
tests.dryrun_cupy.worker ALLOCATOR``.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import cupy
import numpy

import arena
from arena import sim
from arena._dryrun.cupy.recipe import MODULES

from .operations import OWN, SHARED

Held = Callable[[], int]


def use_cupys_pool() -> Held:
    return lambda: int(cupy.get_default_memory_pool().used_bytes())


def use_async_pool() -> Held:
    pool = cupy.cuda.MemoryAsyncPool()
    cupy.cuda.set_allocator(pool.malloc)
    return lambda: int(pool.used_bytes())


def use_arena() -> Held:
    pool = arena.Arena()
    cupy.cuda.set_allocator(pool.malloc)
    return lambda: int(pool.stats().live)


ALLOCATORS = {"cupy": use_cupys_pool, "async": use_async_pool, "arena": use_arena}


def arrays(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def described(result: Any) -> list[tuple[tuple[int, ...], str]]:
    return [(numpy.shape(array), str(array.dtype)) for array in arrays(result)]


def bytes_of(expected: list[tuple[tuple[int, ...], str]]) -> list[int]:
    return [int(numpy.prod(shape, dtype=int)) * numpy.dtype(dtype).itemsize for shape, dtype in expected]


def settle() -> None:
    gc.collect()
    cupy.cuda.Device().synchronize()


def run_one(operation: Any, expected: list[tuple[tuple[int, ...], str]], held: Held) -> dict[str, Any]:
    try:
        operation(cupy)  # once more before: libraries keep plans, handles and workspaces
        settle()
        before = held()
        result = operation(cupy)
        settle()
        during, given = held(), described(result)
        for array in arrays(result):
            array.get()  # may be read
        del result, array
        settle()
        return {
            "given": given,
            "expected": expected,
            "bytes": bytes_of(expected),
            "held": during - before,
            "left": held() - before,
        }
    except Exception:
        return {"error": traceback.format_exc()}


def give_back() -> None:
    """What CuPy and its libraries keep for later."""
    cupy.fft.config.clear_plan_cache()
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()
    settle()


def main() -> None:
    allocator, *chosen = sys.argv[1:]
    sim.configure(races=True)
    held = ALLOCATORS[allocator]()
    one = cupy.empty(1, "uint8")
    unit = held()
    del one
    results = {}
    for name, make in SHARED.items():
        if not chosen or name in chosen:
            results[name] = run_one(make, described(make(numpy)), held)
    for name, (make, expected) in OWN.items():
        if not chosen or name in chosen:
            results[name] = run_one(make, expected, held)
    give_back()
    facts = {
        "unit": unit,
        "operations": results,
        "left": held(),
        "races": [str(race) for race in sim.races()],
        "findings": [str(finding) for finding in sim.findings()],
        "census": dataclasses.asdict(sim.census()),
        "launches": sim.calls("cuLaunchKernel"),
        "modules": {module.name: sys.modules[module.name].__file__ for module in MODULES if module.name in sys.modules},
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
