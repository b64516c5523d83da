"""All arenas that there are, by number. It keeps none of them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .arena import Arena

__all__ = ["notice_pressure", "open_arenas", "remember"]

# By number. Not a WeakSet: that cannot be gone through while another thread makes, or drops, an arena.
_arenas: dict[int, weakref.ref[Arena]] = {}


def remember(pool: Arena) -> None:
    """Called by each arena when it is made."""
    number, forget = pool._number, _arenas.pop
    _arenas[number] = weakref.ref(pool, lambda _: forget(number, None))


def open_arenas() -> list[Arena]:
    """All that there are, by device and age; some may be closed by now."""
    pools = [pool for known in _arenas.copy().values() if (pool := known()) is not None]
    return sorted(pools, key=lambda pool: (pool.device, pool._number))


def notice_pressure(number: int, is_before: bool) -> None:
    """Look at an arena, by its number, before or after the core hands out a block that is there. Called by the core."""
    known = _arenas.get(number)
    pool = known() if known is not None else None
    if pool is None or pool._core is None:
        return
    if is_before:
        pool._look_at_pressure(pool._core)
    else:
        pool._tell_pressure(pool._core)
