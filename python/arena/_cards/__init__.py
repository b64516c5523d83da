"""GPUs by name: a profile for each in ``data/``, read and checked here. Says what a card is like, simulates nothing."""

from __future__ import annotations

from .context import ContextRange, Reading, context_range, loads_eagerly, readings
from .model import Card
from .profiles import card_names, find_card, profile_path, read_cards
from .read import read_card

__all__ = [
    "Card",
    "ContextRange",
    "Reading",
    "card_names",
    "context_range",
    "find_card",
    "loads_eagerly",
    "profile_path",
    "read_card",
    "read_cards",
    "readings",
]
