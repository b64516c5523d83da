"""Arenas as in the tests of the arena: what they leave behind is looked at."""

from __future__ import annotations

from ..arena.conftest import cu, make, work

__all__ = ["cu", "make", "work"]
