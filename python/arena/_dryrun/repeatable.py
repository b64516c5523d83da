"""The same random numbers in every run of a program that sets no seed.

Runs with other assumptions are compared by what they ask for. A program that shuffles its data in another order each
time asks for something else each time, so nothing could be said of the assumptions. A seed of the program counts.
"""

from __future__ import annotations

import random
from typing import Any

from .._util.imports import after_import

__all__ = ["enable"]

SEED = 0


def enable() -> None:
    """From now on, and from the import of NumPy and PyTorch on."""
    random.seed(SEED)
    after_import("numpy", seed_numpy)
    after_import("torch", seed_torch)


def seed_numpy(numpy: Any) -> None:
    numpy.random.seed(SEED)


def seed_torch(torch: Any) -> None:
    """Of all devices: those that are not there yet get it when they are."""
    torch.manual_seed(SEED)
