"""CuPy with the arena: one line to switch, a cap that holds, and a report that says who holds memory.

python examples/quickstart.py      on a GPU, or without one on the simulated driver
"""

from __future__ import annotations

import cupy

import arena

arena.trace_lines(True)  # remember which line made each array
pool = arena.Arena(cap="1GiB")
cupy.cuda.set_allocator(pool.malloc)

weights = cupy.empty((4096, 4096), dtype="float32")
batch = cupy.empty((256, 3, 224, 224), dtype="float16")
crop = batch[:, :, 16:208, 16:208]  # a view keeps the memory of the whole batch alive
del batch

print(pool)
print(f"{crop.nbytes:,} bytes in the view, {pool.stats().live:,} live in the arena")
for holder in pool.report().lines:
    print(f"{holder.bytes:>12,}  {holder.name}")
