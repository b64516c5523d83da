"""The arena's fixtures, with the same checks at the end."""

from __future__ import annotations

from ..arena.conftest import cu, make

__all__ = ["cu", "make"]
