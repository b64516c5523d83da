"""Uses CuPy's own pool and an arena in every way that programs use a pool, and prints what was seen as JSON.

Started by test_pool_methods.py: ``python -m tests.dryrun_cupy.pool_methods``.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import cupy

import arena

MIB, GIB = 1 << 20, 1 << 30
KINDS = (ValueError, MemoryError)
LIMITS: tuple[dict[str, Any], ...] = (
    {"size": GIB},
    {"size": 0},
    {"size": 0.3 * GIB},
    {"fraction": 0.5},
    {"fraction": 0},
    {"fraction": 1},
    {"size": None},
    {},
    {"size": 1000 * GIB},
    {"size": -1},
    {"fraction": -0.1},
    {"fraction": 1.1},
    {"size": 0, "fraction": 0.1},
)


def result_of(function: Callable[[], Any]) -> Any:
    """What a function returns, raises and warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = function()
        except KINDS as error:
            found = [kind.__name__ for kind in KINDS if isinstance(error, kind)]
    return [found, [warning.category.__name__ for warning in caught]]


def limits(pool: Any) -> dict[str, Any]:
    seen = {"at the start": pool.get_limit()}
    for given in LIMITS:
        seen[str(given)] = [result_of(lambda given=given: pool.set_limit(**given)), pool.get_limit()]  # type: ignore[misc]
    pool.set_limit(8 * MIB)
    held = pool.malloc(4 * MIB)
    seen["too much"] = result_of(lambda: pool.malloc(5 * MIB))
    pool.set_limit(MIB)
    seen["below what is used"] = [pool.get_limit(), pool.used_bytes(), result_of(lambda: pool.malloc(MIB))]
    pool.set_limit(0)
    seen["lifted"] = pool.malloc(20 * MIB).mem.size
    del held
    pool.free_all_blocks()
    return seen


def memory(pool: Any) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    cupy.cuda.set_allocator(pool.malloc)
    array = cupy.empty(1000, "uint8")
    kept = array.data.mem
    seen["memory"] = [kept.size, kept.device_id, pool.used_bytes()]
    kept.free()
    seen["freed"] = [kept.size, kept.ptr, pool.used_bytes(), pool.n_free_blocks()]
    kept.free()
    seen["freed twice"] = pool.used_bytes()
    other = cupy.empty(1000, "uint8")
    del array, kept
    seen["dropped when another has the memory"] = pool.used_bytes()
    del other
    seen["free_all_free"] = [result_of(pool.free_all_free), pool.total_bytes(), pool.free_bytes(), pool.n_free_blocks()]
    for stream in (None, cupy.cuda.Stream.null):
        pool.malloc(MIB)
        seen[f"free_all_blocks {stream}"] = [result_of(lambda s=stream: pool.free_all_blocks(s)), pool.total_bytes()]  # type: ignore[misc]
    return seen


if __name__ == "__main__":
    pools = {"cupy": cupy.cuda.MemoryPool(), "arena": arena.Arena()}
    print(json.dumps({name: {**limits(pool), **memory(pool)} for name, pool in pools.items()}))
