"""What a profile says about a card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .._util.shown import Tabled

__all__ = ["Card"]


@dataclass(frozen=True)
class Card(Tabled):
    """A GPU as its driver describes it. Sizes are in bytes."""

    key: str
    """What you call it: ``rtx4090``; the name of its file without the ending."""
    name: str
    """What ``cuDeviceGetName`` says: ``NVIDIA GeForce RTX 4090``."""
    memory: int
    """What ``cuDeviceTotalMem`` says: less than what is printed on the box."""
    compute_capability: str
    multiprocessors: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    shared_per_block: int
    """Shared memory that a block gets without asking for more."""
    shared_per_block_optin: int
    """The most that a block can ask for."""
    shared_per_multiprocessor: int
    registers_per_multiprocessor: int
    l2_cache: int
    clock_khz: int
    memory_clock_khz: int
    bus_width: int
    integrated: bool
    """Whether it shares the host's memory."""
    context: int
    """The least that a CUDA context takes of the memory. The simulated driver takes that much."""
    sources: tuple[str, ...] = ()
    """Where the figures come from: the comments of the file."""
    path: Path = Path()
    """The file."""

    @property
    def usable(self) -> int:
        """Memory that is left for the program once it has a CUDA context."""
        return max(0, self.memory - self.context)
