"""CuPy's current allocator in this thread. Neither imports CuPy nor opens a driver."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from .. import _core
from .._pool.arena import Arena
from .._pool.defaults import default_arena

__all__ = ["arena_in_force", "cupys_allocator", "is_arenas"]


def cupys_allocator() -> Any:
    """CuPy's allocator; None if CuPy is not imported, or a stand-in without one."""
    cupy: Any = sys.modules.get("cupy")
    if not isinstance(cupy, ModuleType):
        return None
    try:
        return cupy.cuda.get_allocator()
    except AttributeError:
        return None


def is_arenas(allocator: Any) -> bool:
    """Whether an allocator is ``arena.malloc``, or the ``malloc`` of an arena."""
    return allocator == _core.malloc or isinstance(getattr(allocator, "__self__", None), _core.Allocator)


def arena_in_force(allocator: Any) -> Arena:
    """The arena behind such an allocator."""
    if allocator == _core.malloc:
        from .bridge import current_device  # late: imports CuPy

        return default_arena(current_device())
    pool: Arena = allocator.__self__
    return pool
