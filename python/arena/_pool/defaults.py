"""The arena that each device has by default, and what is asked of all arenas at once: functions of ``arena`` itself."""

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

__all__ = ["default_arena", "malloc_by_python", "metrics", "report", "safe_point"]


def safe_point(*, budget: str | float = BUDGET) -> int:
    """Say that nothing launches work now, to all open arenas: see :meth:`Arena.safe_point`. The budget is for each.

    >>> safe_point(budget="5ms")
    0
    """
    parse_duration(budget, "budget")
    freed = 0
    for pool in open_arenas():
        with contextlib.suppress(UsageError):  # it was closed, by now
            freed += pool.safe_point(budget=budget)
    return freed


def report() -> Reports:
    """Return the reports of all open arenas, of all devices."""
    reports = []
    for pool in open_arenas():
        with contextlib.suppress(UsageError):  # it was closed, by now
            reports.append(pool.report())
    return Reports(reports)


_defaults: dict[int, Arena] = {}
_defaults_lock = threading.RLock()  # an array that is collected meanwhile may come here


def _forget_defaults() -> None:
    """In a forked child: the arenas are the parent's, and the lock may have been held by a thread that is not here."""
    global _defaults_lock
    _defaults_lock = threading.RLock()
    _defaults.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_defaults)


def default_arena(device: int = 0) -> Arena:
    """Return the process's own arena of a device, made at the first call with the settings in force then."""
    if isinstance(device, bool) or not isinstance(device, int):
        raise UsageError(f"device={device!r} is not accepted; a default arena is of a device with a number")
    with _defaults_lock:
        if device not in _defaults or _defaults[device]._core is None:  # none yet, or closed
            _defaults[device] = Arena(device=device)
            _core.set_default(device, _defaults[device])
        return _defaults[device]


def metrics(**labels: str | int) -> str:
    """Return the accounts of all default arenas in Prometheus's text format; see :meth:`Arena.metrics`.

    >>> metrics()  # nobody has used one yet
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
