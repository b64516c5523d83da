"""PyTorch with the arena: two lines to switch, what each training step needs, and which lines hold memory.

arena dryrun examples/quickstart_torch.py      without a GPU
python examples/quickstart_torch.py            on one
"""

from __future__ import annotations

import torch
from torch import nn

import arena

arena.trace_lines(True)  # remember which line made each tensor
pool = arena.Arena(cap="2GiB")
arena.torch.use(pool)  # before the first CUDA tensor

layer = nn.TransformerEncoderLayer(d_model=512, nhead=8, dim_feedforward=2048, batch_first=True)
model = nn.Sequential(nn.TransformerEncoder(layer, num_layers=6), nn.Linear(512, 1000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())

for length in (64, 256, 128):
    pool.reset_peaks()
    model(torch.randn(8, length, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{length} words: {pool.stats().peak_live >> 20} MiB at the peak of this step")

print(pool)
for holder in pool.report().lines:
    print(f"{holder.bytes:>12,}  {holder.name}")
try:
    torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:  # code for PyTorch's allocator keeps working
    print(str(error).splitlines()[0])
