"""The largest batch that fits, found by trying."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from .._core import Allocator
from .._cupy.in_force import arena_in_force, cupys_allocator, is_arenas
from .._pool.arena import Arena
from .._pool.defaults import default_arena
from .._pool.registry import open_arenas
from .._util.shown import Shown
from ..errors import OutOfMemoryError, UsageError

__all__ = ["LargestBatch", "largest_batch"]


class _Found(NamedTuple):
    batch: int
    """The largest that passes."""
    peak: int
    """The most bytes that were live in it."""
    tried: dict[int, int | None]
    """Every batch that was tried, with its peak, or none if it did not pass."""


class LargestBatch(Shown, _Found):
    """What :func:`largest_batch` found."""

    __slots__ = ()


def largest_batch(function: Callable[[int], object], low: int, high: int, *, pool: Arena | None = None) -> LargestBatch:
    """Call ``function(batch)`` with batches from ``low`` to ``high`` until the largest is known that passes.

    A batch passes if no request fails. If one does, all larger ones are taken to fail as well, so few are tried. What
    a call leaves behind is collected before the next. If not even ``low`` passes, its :class:`OutOfMemoryError` is
    raised.

    ``pool`` is the arena that the memory comes from; CuPy's arrays are allocated from it while the function runs.
    Without it, it is the arena that CuPy uses now; if CuPy uses another allocator, that is a :class:`UsageError`,
    because the answer would be of another program. Without CuPy it is the arena that is open, or the default arena.

    >>> import arena
    >>> pool = arena.Arena(cap="64MiB", device="sim:1GiB")
    >>> arena.largest_batch(lambda batch: pool.allocate(batch << 20), 1, 1000, pool=pool)[:2]
    (64, 67108864)
    """
    for name, value in (("low", low), ("high", high)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UsageError(f"{name}={value!r} is not accepted; write a batch size, an int from 0")
    if low > high:
        raise UsageError(f"low={low} is more than high={high}")
    if pool is None:
        pool = _pool_in_force()
    if not isinstance(pool, Allocator):
        raise UsageError(f"pool={pool!r} is no arena.Arena")
    tried: dict[int, int | None] = {}
    tried[low] = best = _peak_of(function, low, pool)
    below, above = low, high + 1
    candidate = high  # it may just fit
    while below < above - 1:
        try:
            tried[candidate] = best = _peak_of(function, candidate, pool)
            below = candidate
        except OutOfMemoryError:
            tried[candidate] = None
            above = candidate
        candidate = (below + above) // 2
    return LargestBatch(below, best, tried)


def _pool_in_force() -> Arena:
    allocator = cupys_allocator()
    if is_arenas(allocator):
        return arena_in_force(allocator)
    if allocator is not None:
        raise UsageError(
            f"CuPy's memory comes from {_whose(allocator)}, not from an arena, and what fits there is not known here; "
            "give CuPy an arena first, cupy.cuda.set_allocator(arena.malloc), or say with pool= which one to try"
        )
    pools = [pool for pool in open_arenas() if pool._core is not None]
    if len(pools) > 1:
        raise UsageError(f"{len(pools)} arenas are open; say with pool= which one the function uses")
    return pools[0] if pools else default_arena()


def _whose(allocator: Any) -> str:
    owner = getattr(allocator, "__self__", None)
    if owner is None or isinstance(owner, ModuleType):
        return repr(allocator)
    return f"{type(owner).__module__}.{type(owner).__qualname__}"


def _peak_of(function: Callable[[int], object], batch: int, pool: Arena) -> int:
    gc.collect()
    with _cupys_allocator(pool), pool.scope(f"batch {batch}") as scope:
        function(batch)
    return scope.peak


def _cupys_allocator(pool: Arena) -> contextlib.AbstractContextManager[Any]:
    """CuPy's arrays come from the arena, if CuPy is there."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = cupy.cuda.using_allocator(pool.malloc)
    return context
