"""The fixtures of the arena's tests: an arena must leave nothing behind."""

from __future__ import annotations

from ..arena.conftest import cu, make, work

__all__ = ["cu", "make", "work"]
