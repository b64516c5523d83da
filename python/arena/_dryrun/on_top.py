"""What comes on top of what the simulated driver counts: the rest of the CUDA context, and kernels.

The simulated driver takes the least that a context takes. To it, kernels that are certainly loaded are memory of
another process. The rest is added to the verdict.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from .._cards import Card, ContextRange, context_range, loads_eagerly
from .._util.sizes import parse_size

__all__ = ["OnTop", "on_top_of"]

OTHER = "CUDASIM_OTHER"  # what else is in use on the simulated device


@dataclass(frozen=True)
class OnTop:
    """Bytes beside those that the simulated driver counts as the program's."""

    low: int
    high: int
    context: ContextRange
    """The whole of it, with what the driver does count."""

    @property
    def span(self) -> int:
        return self.high - self.low

    def variables(self) -> dict[str, str]:
        """The environment variables that make the least unavailable to the program."""
        if not self.low:
            return {}
        return {OTHER: str(self.low + parse_size(os.environ.get(OTHER, 0) or 0, None, OTHER))}


def on_top_of(card: Card | None, environment: Mapping[str, str], *, most: bool = False) -> OnTop:
    """What comes on top on a card, for a program with these variables. ``most``: no less than it may ever be."""
    found = context_range(card, eager=loads_eagerly(environment))
    counted = card.context if card is not None else 0
    low, high = found.low - counted, found.high - counted
    return OnTop(high if most else low, high, found)
