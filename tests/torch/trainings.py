"""A training in which memory becomes scattered: lengths differ from step to step, and some tensors are kept."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from .tensors import MIB


class Sentences(Dataset[Tensor]):
    """Batches of one sentence, of lengths that differ."""

    def __init__(self, width: int) -> None:
        chance = random.Random(3)
        self.lengths = [chance.randrange(100, 1000, 4) for _ in range(12)]
        self.width = width

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> Tensor:
        return torch.zeros(self.lengths[number], self.width)


class Model(nn.Module):
    """Blocks whose activations are kept, computed again in the backward pass (checkpoints), and looked at by hooks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = block(x) if number % 2 == 0 else checkpoint(block, x, use_reentrant=number == 1)
            if x.requires_grad:
                x.register_hook(lambda gradient: gradient * 1)
        return x


class Kept:
    """Tensors of known contents, kept among those of the training."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []

    def add(self, mebibytes: int) -> None:
        value = len(self.tensors) + 1
        self.tensors.append(torch.full((mebibytes * MIB + 512,), value, dtype=torch.uint8).cuda())

    def check(self) -> None:
        for value, tensor in enumerate(self.tensors, 1):
            assert bool((tensor.cpu() == value).all())


def train(workers: int = 1) -> None:
    """Twelve steps with a loader that pins memory, AdamW and clipped gradients."""
    width, kept = 256, Kept()
    with torch.device("cuda"):
        model = Model(width)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Sentences(width), batch_size=1, num_workers=workers, pin_memory=True)
    for step, batch in enumerate(loader):
        x = batch.cuda(non_blocking=True).requires_grad_()
        model(x).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 0:
            kept.add(1)
        kept.check()
