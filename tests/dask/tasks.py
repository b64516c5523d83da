"""What the tests run on workers."""

from __future__ import annotations

import os
import time
from typing import Any

import arena
import arena.dask

MIB = 1 << 20
attempts: list[int] = []  # of each process


def hold(size: int) -> arena.Buffer:
    """Allocate a buffer, which lives as long as Dask keeps the result."""
    return arena.dask.get_arena().allocate(size)


def nap(seconds: float) -> None:
    time.sleep(seconds)


def request(size: int) -> None:
    arena.dask.get_arena().allocate(size)


def pass_at_second_attempt(size: int) -> int:
    """Fail once while it holds more than half of what it needs, so that a retry fails if that is not free again."""
    attempts.append(size)
    held = arena.dask.get_arena().allocate(size)
    if len(attempts) == 1:
        more = arena.dask.get_arena().allocate(size)
        return int(more.nbytes)
    held.free()
    return len(attempts)


def settings_of_arena() -> dict[str, Any]:
    pool = arena.dask.get_arena()
    stats = pool.stats()
    return {
        "process": os.getpid(),
        "device": pool.device,
        "cap": stats.cap,
        "reserved": stats.reserved,
        "live": stats.live,
        "number": pool._number,
        "is_default": arena.default_arena(pool.device) is pool,
    }


def hold_with_cupy(size: int) -> Any:
    import cupy

    return cupy.empty(size, dtype="uint8")


def validate() -> None:
    arena.dask.get_arena().validate()


def close_own_arena() -> None:
    arena.dask.get_arena().close()
