"""What stays allocated after the first matrix product of a layer: PyTorch's workspace for cuBLAS."""

from __future__ import annotations

import torch


def tiny_layer() -> None:
    layer = torch.nn.Linear(1, 1, device="cuda")
    layer(torch.randn(1, 1, device="cuda"))


def wide_layer() -> None:
    layer = torch.nn.Linear(1024, 1024, bias=False).cuda()
    inputs = torch.rand(1, 512, 1024).cuda()
    outputs = layer(inputs)
    print("wide", torch.cuda.max_memory_allocated())
    del outputs


tiny_layer()
torch.cuda.synchronize()
print("tiny", torch.cuda.memory_allocated())
torch._C._cuda_clearCublasWorkspaces()
torch.cuda.reset_peak_memory_stats()
wide_layer()
