"""CuPy and PyTorch share one arena: one cap, one report, and memory that goes from one to the other without a copy.

arena dryrun examples/two_frameworks.py      without a GPU
python examples/two_frameworks.py            on one
"""

from __future__ import annotations

import cupy
import torch

import arena

arena.trace_lines(True)
pool = arena.Arena(cap="1GiB")
cupy.cuda.set_allocator(pool.malloc)
arena.torch.use(pool)  # before the first CUDA tensor

model = torch.nn.Sequential(torch.nn.Linear(513, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 513)).cuda()
stream = torch.cuda.Stream()  # both work on it, so memory is reused in its order

with torch.cuda.stream(stream), cupy.cuda.Stream.from_external(stream), torch.no_grad():
    sound = cupy.zeros((2000, 1024), "f4")
    spectrum = cupy.abs(cupy.fft.rfft(sound))
    batch = torch.from_dlpack(spectrum)  # the same memory
    cleaned = cupy.from_dlpack(model(batch))
    print(f"no copy: {batch.data_ptr() == spectrum.data.ptr}")
    del spectrum
    print(f"{pool.stats().live:,} bytes live: PyTorch still holds the spectrum")
    del batch
    print(f"{pool.stats().live:,} bytes live")

for holder in (*pool.report().frameworks, *pool.report().lines):
    print(f"{holder.bytes:>12,}  {holder.name}")
