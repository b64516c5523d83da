"""Tensors of some size, and which arena they are of."""

from __future__ import annotations

import torch

import arena

MIB = 1 << 20


def mebibytes(count: int) -> torch.Tensor:
    return torch.empty(count * MIB, dtype=torch.uint8, device="cuda")


def holds(pool: arena.Arena, tensor: torch.Tensor) -> bool:
    return any(piece.address == tensor.data_ptr() and piece.state == "live" for piece in pool.snapshot().pieces)
