"""An arena in which only moving live data makes room for a request, and tensors whose contents are checked."""

from __future__ import annotations

import torch

import arena
import arena.torch
from arena import sim

from .tensors import MIB, mebibytes


class Stranded:
    """Eight granules; every other one holds a tensor."""

    def __init__(self, cap: str = "64MiB", compact: bool | str = "auto") -> None:
        self.pool = arena.Arena(cap=cap, growth="16MiB", compact=compact)
        arena.torch.use(self.pool)
        self.live: list[torch.Tensor] = []
        self.strand()

    def strand(self) -> None:
        """Start over with large handles: moving leaves data in small ones."""
        self.live.clear()
        torch.cuda.synchronize()
        self.pool.trim()
        self.live = [mebibytes(2) for _ in range(8)][::2]
        for value, tensor in enumerate(self.live, 1):
            tensor.copy_(torch.full((2 * MIB,), value, dtype=torch.uint8))
        torch.cuda.synchronize()

    @property
    def size(self) -> int:
        """The bytes of a request that passes only if live data is moved."""
        stats = self.pool.stats()
        assert stats.largest_without_moving + MIB < stats.largest_with_moving
        return stats.largest_without_moving + MIB

    @property
    def moved(self) -> int:
        return self.pool.stats().rebacked

    def attempt(self) -> str:
        """Make such a request in this thread. Return "moved", or why not. Then check the contents."""
        outcome = self.ask()
        self.check()
        return outcome

    def ask(self) -> str:
        before = self.moved
        try:
            torch.empty(self.size, dtype=torch.uint8, device="cuda")
        except RuntimeError as error:  # some versions of PyTorch do not export the constructor of its own error
            assert self.moved == before
            (said,) = (line for line in str(error).splitlines() if line.startswith("Live data may not be moved"))
            outcome = said.removeprefix("Live data may not be moved: ").partition(".")[0]
        else:
            assert self.moved > before
            outcome = "moved"
        return outcome

    def check(self) -> None:
        for value, tensor in enumerate(self.live, 1):
            assert bool((tensor.cpu() == value).all())
        assert sim.findings() == []
