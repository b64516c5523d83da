"""GPUs by name: a profile for each in ``data/``, read and checked here. Says what a card is like, simulates nothing."""

from __future__ import annotations

from .model import Card
from .profiles import card_names, find_card, profile_path, read_cards
from .read import read_card

__all__ = ["Card", "card_names", "find_card", "profile_path", "read_card", "read_cards"]
