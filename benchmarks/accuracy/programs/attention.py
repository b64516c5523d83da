"""Plain attention in float32, B sequences of M with K features: the peak forward and the peak backward."""

from __future__ import annotations

import os
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":0:0"  # PyTorch of that time left cuBLAS its own workspaces

import torch


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    query = query * (1.0 / query.shape[-1] ** 0.5)
    return (query @ key.transpose(-2, -1)).softmax(-1) @ value


def forward(shape: list[int]) -> int:
    query = torch.rand(shape, device="cuda")
    efficient = torch.rand_like(query)  # the result of the kernel that it was compared with
    plain = attention(query, query, query)
    (efficient - plain).abs().max()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        attention(query, query, query)
    return torch.cuda.max_memory_allocated()


def backward(shape: list[int]) -> int:
    query = torch.rand(shape, device="cuda", requires_grad=True)
    efficient, plain = torch.rand_like(query), torch.rand_like(query)  # results that were compared before
    query.grad = torch.rand_like(query)
    gradient = torch.ones_like(query)
    out = attention(query, query, query)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        out.backward(gradient, retain_graph=True)
    del efficient, plain
    return torch.cuda.max_memory_allocated()


shape = [int(size) for size in sys.argv[1:]]
print("forward", forward(shape))
torch.cuda.empty_cache()
print("backward", backward(shape))
