"""RMM with memory of an arena: buffers under a cap, and a failure that says who holds the rest.

ARENA_DRIVER=sim python examples/quickstart_rmm.py      without a GPU
python examples/quickstart_rmm.py                       on one
"""

from __future__ import annotations

import rmm

import arena

arena.trace_lines(True)
pool = arena.Arena(cap="256MiB")
resource = arena.rmm.resource(pool)
# On a GPU, arena.rmm.use(pool) makes it the resource of the device, also for cuDF and cuML. RMM's CUDA runtime does not
# start on the simulated driver, so this program passes the resource to each buffer.
table = rmm.DeviceBuffer(size=150 << 20, mr=resource)
index = rmm.DeviceBuffer(size=40 << 20, mr=resource)
print(pool)

try:
    rmm.DeviceBuffer(size=100 << 20, mr=resource)
except MemoryError as error:
    print(str(error).partition(";")[0])

del table
joined = rmm.DeviceBuffer(size=100 << 20, mr=resource)
for holder in pool.report().lines:
    print(f"{holder.bytes:>12,}  {holder.name}")
