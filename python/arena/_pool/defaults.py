"""The default arena of each device, and functions for all arenas at once: public functions of ``arena``."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any, SupportsIndex

from .. import _core
from .._report import Reports
from .._util.durations import BUDGET, parse_duration
from .._util.late import late_import
from ..errors import UsageError
from .arena import Arena, metrics_of
from .registry import open_arenas

__all__ = ["default_arena", "malloc_by_python", "metrics", "replace_default", "report", "safe_point"]


def safe_point(*, budget: str | float = BUDGET) -> int:
    """Declare a safe point for all open arenas: see :meth:`Arena.safe_point`. The budget applies to each.

    >>> safe_point(budget="5ms")
    0
    """
    parse_duration(budget, "budget")
    freed = 0
    for pool in open_arenas():
        with contextlib.suppress(UsageError):  # closed by now
            freed += pool.safe_point(budget=budget)
    return freed


def report() -> Reports:
    """Return the reports of all open arenas, of all devices."""
    reports = []
    for pool in open_arenas():
        with contextlib.suppress(UsageError):  # closed by now
            reports.append(pool.report())
    return Reports(reports)


_defaults: dict[int, Arena] = {}
_defaults_lock = threading.RLock()  # reentrant: an array collected in here may allocate


def _forget_defaults() -> None:
    """In a forked child: the arenas belong to the parent, and one of its threads may have held the lock."""
    global _defaults_lock
    _defaults_lock = threading.RLock()
    _defaults.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_defaults)


def default_arena(device: int = 0) -> Arena:
    """Return the default arena of a device, created at the first call with the current settings."""
    if isinstance(device, bool) or not isinstance(device, int):
        raise UsageError(f"device={device!r} is not accepted; give the number of a device")
    with _defaults_lock:
        if device not in _defaults or _defaults[device]._core is None:  # none yet, or closed
            _defaults[device] = Arena(device=device)
            _core.set_default(device, _defaults[device])
        return _defaults[device]


def replace_default(pool: Arena) -> Arena | None:
    """Make an arena the default of its device, until it is closed. Returns the previous one, which stays open."""
    with _defaults_lock:
        previous = _defaults.get(pool.device)
        _core.set_default(pool.device, pool)
        _defaults[pool.device] = pool
        return previous if previous is not None and previous._core is not None else None


def metrics(**labels: str | int) -> str:
    """Return the accounts of all default arenas in Prometheus's text format; see :meth:`Arena.metrics`.

    >>> metrics()  # none has been used yet
    ''
    """
    with _defaults_lock:
        pools = [pool for _, pool in sorted(_defaults.items()) if pool._core is not None]
    return metrics_of(pools, labels)


def malloc_by_python(size: SupportsIndex) -> Any:
    """Do what arena.malloc does where the core needs Python: to create a default arena, and for errors."""
    with late_import("CuPy cannot be given memory"):
        from .._cupy import bridge

    return bridge.malloc(bridge.default_pool(), size)
