"""What a process takes of a card beside what its allocators do: the CUDA context, and the kernels that are loaded.

How much that is depends on the driver, the framework and the program, so it is a range. It follows from the card by a
rule that was fitted to published readings (``readings.csv``); docs/cards.md has both. This is the one place that knows.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .model import Card

__all__ = ["ContextRange", "Reading", "context_range", "loads_eagerly", "readings", "typical_context"]

MIB = 1 << 20
READINGS = Path(__file__).with_name("readings.csv")
# The rule: a fixed part, and stacks and buffers for each thread that can be resident.
FIXED, PER_THREAD = 64 * MIB, 1.767 * 1024
# Readings without eager loading are 0.88 to 1.25 of the rule, and at most 125 MiB above it. Which kernels are loaded
# depends on the program, so the most is twice that.
LEAST_SHARE, MOST_MORE = 0.87, 250 * MIB
# With all kernels of PyTorch loaded at once, readings are 474 to 1,375 MiB above the rule, by PyTorch's version.
EAGER_LEAST, EAGER_MOST = 470 * MIB, 1380 * MIB


@dataclass(frozen=True)
class Reading:
    """A published measurement."""

    mib: int
    gpu: str
    cards: tuple[str, ...]
    """The keys of the cards with this chip."""
    threads: int
    loading: str
    """``none`` if no framework was used, or how PyTorch's kernels were loaded: ``lazy``, ``eager``."""
    software: str
    how: str
    """``smi``, ``oom`` or ``free``."""
    source: str


@dataclass(frozen=True)
class ContextRange:
    """Bytes, from the least to the most."""

    low: int
    high: int
    is_measured: bool = False
    """Whether there are readings of this chip; otherwise the rule alone says it."""

    @property
    def span(self) -> int:
        return self.high - self.low


@functools.cache
def readings() -> tuple[Reading, ...]:
    """All that were found, in the order of the file."""
    with READINGS.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(line for line in opened if not line.startswith("#")))
    return tuple(
        Reading(
            int(row["mib"]),
            row["gpu"],
            tuple(row["cards"].split()),
            int(row["threads"]),
            *(row[name] for name in ("loading", "software", "how", "source")),
        )
        for row in rows
    )


def typical_context(threads: int) -> int:
    """The rule: what a context takes on a card on which so many threads can be resident."""
    return round(FIXED + PER_THREAD * threads)


def context_range(card: Card | None, *, eager: bool = False) -> ContextRange:
    """What the context and kernels take on a card; nothing if the card is none, or its profile says so.

    The least is what the profile says (``context``), which is also what the simulated driver takes.

    >>> from arena._cards import find_card
    >>> found = context_range(find_card("t4"))
    >>> found.low >> 20, found.high >> 20, found.is_measured
    (117, 385, True)
    """
    if card is None or card.context == 0:
        return ContextRange(0, 0)
    typical = typical_context(card.multiprocessors * card.threads_per_multiprocessor)
    own = [one.mib * MIB for one in readings() if card.key in one.cards]
    if eager:
        return ContextRange(card.context + EAGER_LEAST, max(card.context, typical) + EAGER_MOST, bool(own))
    lazy = [one.mib * MIB for one in readings() if card.key in one.cards and one.loading != "eager"]
    high = max(card.context, typical + MOST_MORE, *lazy)
    return ContextRange(card.context, math.ceil(high / MIB) * MIB, bool(lazy))


def least_context(threads: int) -> int:
    """The least by the rule, in whole MiB: what the profiles of arena's cards say."""
    return math.floor(LEAST_SHARE * typical_context(threads) / MIB) * MIB


def loads_eagerly(environment: Mapping[str, str]) -> bool:
    """Whether a process with these variables loads all kernels of its libraries at once.

    Lazy loading is the default since CUDA 12.2, and PyTorch turns it on by itself since 1.13. Dry runs have no older
    runtime than that of CUDA 12.
    """
    return environment.get("CUDA_MODULE_LOADING", "").upper() == "EAGER"
