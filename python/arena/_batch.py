"""The largest batch that fits, found by trying."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ._core import Allocator
from .errors import OutOfMemoryError, UsageError

if TYPE_CHECKING:
    from ._arena import Arena

__all__ = ["LargestBatch", "largest_batch"]


class LargestBatch(NamedTuple):
    """What :func:`largest_batch` found."""

    batch: int
    """The largest that passes."""
    peak: int
    """The most bytes that were live in it."""
    tried: dict[int, int | None]
    """Every batch that was tried, with its peak, or none if it did not pass."""


def largest_batch(function: Callable[[int], object], low: int, high: int, *, pool: Arena | None = None) -> LargestBatch:
    """Call ``function(batch)`` with batches from ``low`` to ``high`` until the largest is known that passes.

    A batch passes if no request fails. If one does, all larger ones are taken to fail as well, so few are tried. CuPy's
    arrays are allocated from ``pool`` meanwhile (default: the default arena of device 0). What a call leaves behind is
    collected before the next. If not even ``low`` passes, its :class:`OutOfMemoryError` is raised.

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
        from ._arena import default_arena

        pool = default_arena()
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
