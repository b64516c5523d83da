"""All arenas of the process, by number. It keeps none of them alive."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .arena import Arena

__all__ = ["find_arena", "open_arenas", "remember"]

# By number. Not a WeakSet, which cannot be iterated while another thread creates or drops an arena.
_arenas: dict[int, weakref.ref[Arena]] = {}


def remember(pool: Arena) -> None:
    """Add an arena; each one does that when it is created."""
    number, forget = pool._number, _arenas.pop
    _arenas[number] = weakref.ref(pool, lambda _: forget(number, None))


def open_arenas() -> list[Arena]:
    """All arenas, by device and age; another thread may close some at any time."""
    pools = [pool for known in _arenas.copy().values() if (pool := known()) is not None]
    return sorted(pools, key=lambda pool: (pool.device, pool._number))


def find_arena(number: int) -> Arena | None:
    """The arena with a number, if it is still there. The core calls this to reach it from its own half."""
    known = _arenas.get(number)
    return known() if known is not None else None
