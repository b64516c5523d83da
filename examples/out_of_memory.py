"""Survive running out of memory: read the error's attributes, choose a batch that fits, and continue.

python examples/out_of_memory.py
"""

from __future__ import annotations

import cupy

import arena

MIB = 1 << 20
ITEM = 3 * MIB  # bytes that one item of a batch takes

pool = arena.Arena(cap="512MiB")
cupy.cuda.set_allocator(pool.malloc)
weights = cupy.empty(200 * MIB, "u1")


def run(batch: int) -> int:
    activations = cupy.empty(batch * ITEM, "u1")
    return activations.nbytes


batch = 256
try:
    run(batch)
except arena.OutOfMemoryError as error:  # a cupy.cuda.memory.OutOfMemoryError too, so old code catches it
    print(f"{error.requested // MIB} MiB asked, {error.verdict}; {error.largest // MIB} MiB would have passed")
    batch = error.largest // ITEM
print(f"a batch of {batch} takes {run(batch) // MIB} MiB")
print(f"failed requests so far: {pool.stats().failures}")
