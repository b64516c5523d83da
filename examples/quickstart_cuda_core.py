"""cuda.core with the arena: buffers in stream order, under a cap.

arena dryrun examples/quickstart_cuda_core.py      without a GPU
python examples/quickstart_cuda_core.py            on one
"""

from __future__ import annotations

from cuda.core import Device

import arena

device = Device()
device.set_current()
pool = arena.Arena(cap="256MiB")
device.memory_resource = arena.cuda_core.MemoryResource(pool)

stream = device.create_stream()
first = device.allocate(64 << 20, stream=stream)  # queue work on the stream that uses it
print(pool)
first.close(stream)  # right away: the host does not wait for the work

second = device.allocate(64 << 20, stream=stream)  # the same memory, behind that work
print(f"{pool.stats().hits} of {pool.stats().allocations} requests took memory that was there")
try:
    device.allocate(1 << 30, stream=stream)
except arena.OutOfMemoryError as error:
    print(f"{error.requested >> 20} MiB asked, {error.verdict}; {error.largest >> 20} MiB would have passed")
second.close(stream)
