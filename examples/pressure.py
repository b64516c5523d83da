"""Shed load before memory runs out, and hand free memory back: callbacks and trim().

python examples/pressure.py
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import cupy

import arena

MIB = 1 << 20
cache: OrderedDict[int, Any] = OrderedDict()
pool = arena.Arena(cap="256MiB")
cupy.cuda.set_allocator(pool.malloc)


def shed(*_: object) -> None:
    """Drop the older half of the cache."""
    for _ in range(len(cache) // 2):
        cache.popitem(last=False)


pool.on_pressure(0.9, shed, of="live", rearm=0.7)
for key in range(100):
    cache[key] = cupy.empty(6 * MIB, "u1")
print(f"{len(cache)} of 100 entries are cached, in {pool.stats().live // MIB} MiB")

cache.clear()
before = pool.stats().reserved
pool.trim()
print(f"trim() returned {(before - pool.stats().reserved) // MIB} MiB to the device")
