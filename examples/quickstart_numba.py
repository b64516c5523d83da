"""Numba with the arena: arrays and kernels as always, under a cap, with a report that says who holds memory.

arena dryrun examples/quickstart_numba.py      without a GPU
python examples/quickstart_numba.py            on one
"""

from __future__ import annotations

from typing import Any

import numpy
from numba import cuda

import arena

arena.trace_lines(True)  # remember which line made each array
pool = arena.Arena(cap="256MiB")
arena.numba.use(pool)  # before Numba first uses the device


@cuda.jit
def scale(values: Any, factor: Any) -> None:
    place = cuda.grid(1)
    if place < values.size:
        values[place] *= factor


values = cuda.to_device(numpy.arange(1 << 20, dtype="f4"))
scale[4096, 256](values, 2)
scratch = cuda.device_array((4, 1 << 20), "f4")
print(pool)
for holder in pool.report().lines:
    print(f"{holder.bytes:>12,}  {holder.name}")
del scratch
try:
    cuda.device_array(1 << 30, "u1")
except arena.numba.OutOfMemoryError as error:
    print(f"{error.requested >> 20} MiB asked, {error.verdict}; {error.largest >> 20} MiB would have passed")
