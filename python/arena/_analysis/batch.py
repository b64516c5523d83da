"""Finds the largest batch that fits, by trying."""

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
    """The largest batch that passes."""
    peak: int
    """Its peak of live bytes."""
    tried: dict[int, int | None]
    """Every batch that was tried and its peak; ``None`` if it failed."""


class LargestBatch(Shown, _Found):
    """The result of :func:`largest_batch`."""

    __slots__ = ()


def largest_batch(function: Callable[[int], object], low: int, high: int, *, pool: Arena | None = None) -> LargestBatch:
    """Find the largest batch from ``low`` to ``high`` for which ``function(batch)`` passes, by bisection.

    A batch passes if no request fails. If it fails, larger ones are assumed to fail as well, so only a few are tried.
    Garbage is collected before each call. If even ``low`` fails, its :class:`OutOfMemoryError` is raised.

    ``pool`` is the arena to use; CuPy's arrays are allocated from it while the function runs. The default is the arena
    that CuPy uses; if CuPy uses another allocator, a :class:`UsageError` is raised, because the answer would not apply
    to it. Without CuPy, the default is the open arena or, if none is open, the default arena.

    >>> import arena
    >>> pool = arena.Arena(cap="64MiB", device="sim:1GiB")
    >>> arena.largest_batch(lambda batch: pool.allocate(batch << 20), 1, 1000, pool=pool)[:2]
    (64, 67108864)
    """
    for name, value in (("low", low), ("high", high)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UsageError(f"{name}={value!r} is not accepted; write a batch size, an int from 0 up")
    if low > high:
        raise UsageError(f"low={low} is greater than high={high}")
    if pool is None:
        pool = _pool_in_force()
    if not isinstance(pool, Allocator):
        raise UsageError(f"pool={pool!r} is not an arena.Arena")
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
            f"CuPy allocates from {_owner_of(allocator)}, not from an arena, so arena cannot know what fits there; "
            "call cupy.cuda.set_allocator(arena.malloc) first, or pass the arena to try as pool="
        )
    pools = [pool for pool in open_arenas() if pool._core is not None]
    if len(pools) > 1:
        raise UsageError(f"{len(pools)} arenas are open; pass the one that the function uses as pool=")
    return pools[0] if pools else default_arena()


def _owner_of(allocator: Any) -> str:
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
    """Allocate CuPy's arrays from the arena, if CuPy is imported."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = cupy.cuda.using_allocator(pool.malloc)
    return context
