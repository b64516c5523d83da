"""Tensors of some size, and which arena they are of."""

from __future__ import annotations

import torch

import arena

MIB = 1 << 20


def mebibytes(count: int) -> torch.Tensor:
    return torch.empty(count * MIB, dtype=torch.uint8, device="cuda")


def write(tensor: torch.Tensor) -> None:
    """Write to a tensor's memory in the current stream, by a copy: kernels are skipped in dry runs."""
    host = torch.zeros(tensor.shape, dtype=tensor.dtype).pin_memory()
    tensor.copy_(host, non_blocking=True)


def holds(pool: arena.Arena, tensor: torch.Tensor) -> bool:
    return any(piece.address == tensor.data_ptr() and piece.state == "live" for piece in pool.snapshot().pieces)
