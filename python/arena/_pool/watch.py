"""Watching arenas for the report of a whole run: what was held at the peak of live bytes, and the account over time.

The core does the work (``src/core/heap/watch.hpp``). While an arena is watched, every operation takes its lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from .. import _core
from .._inspect.snapshot import Snapshot
from .._report import timeline as _timeline
from .._report.build import build
from .._util.sizes import format_size
from .._words.moving import mode
from ..errors import UsageError

if TYPE_CHECKING:
    from .._report import Report
    from .._report.model import Samples
    from .arena import Arena

__all__ = ["Watched", "end_watching", "unwatch", "watch", "watch_all", "watch_if_enabled", "watched"]


class Watched:
    """An arena that is watched from its creation. Does not keep the arena alive, but keeps its peak."""

    def __init__(self, pool: Arena) -> None:
        self.number = pool._number
        self.device = pool.device
        self._pool = weakref.ref(pool)
        self._facts, self._compact = pool._device_facts, pool._compact
        self._core = _core.Watch()
        pool._open.watch(self._core)

    def report(self, place: str) -> Report | None:
        """The report of the peak, with the current state as its end; of the current state if nothing was ever live.

        ``place`` describes the current moment. An arena that is gone and never had anything live has no report.
        """
        now = self._report_now(place)
        found = self._core.peak
        if found is None:
            return now
        at, data = found
        timeline = now.timeline if now is not None else self.timeline(None)
        snapshot = self._snapshot(data)
        return build(
            snapshot,
            **self._facts,
            timeline=timeline,
            moment=self._peak_in_words(at / 1e9, snapshot),
            _end=dataclasses.replace(now, timeline=None) if now is not None else None,
        )

    def timeline(self, now: Snapshot | None) -> Samples | None:
        """The account over time, up to now if the arena still exists."""
        points: list[_timeline.Point] = [(at / 1e9, stats) for at, stats in self._core.samples]
        if now is not None:
            points.append((self._core.now / 1e9, SimpleNamespace(**now.stats)))
        return _timeline.make(_timeline.thin(points), "s")

    def history(self) -> tuple[float, list[_timeline.Point]]:
        """For how many seconds the arena has been watched, and the samples since: seconds, and the account."""
        pool = self._pool()
        with contextlib.suppress(UsageError):  # closed
            if pool is not None:
                pool._open.update_watch()
        return self._core.now / 1e9, [(at / 1e9, stats) for at, stats in self._core.samples]

    def peak(self) -> Snapshot | None:
        """The state at, or close to, the peak of live bytes; None if nothing was ever live."""
        found = self._core.peak
        return self._snapshot(found[1]) if found is not None else None

    def _report_now(self, place: str) -> Report | None:
        pool = self._pool()
        if pool is None:
            return None
        with contextlib.suppress(UsageError):  # closed
            report = pool.report()
            return dataclasses.replace(report, moment=f"{place}: {format_size(report.account['live'])} live.")
        return None

    def _snapshot(self, data: dict[str, Any]) -> Snapshot:
        stats = data["stats"]
        may_move = stats.largest == stats.largest_with_moving
        moving = mode(self._compact, is_plain=data["plain"], is_allowed=may_move)
        return Snapshot._of(self.device, self.number, data, may_move=may_move, moving=moving)

    def _peak_in_words(self, seconds: float, snapshot: Snapshot) -> str:
        live, highest = snapshot.stats["live"], snapshot.stats["peak_live"]
        with contextlib.suppress(UsageError):
            pool = self._pool()
            highest = max(highest, pool._open.highest()[0] if pool is not None else 0)
        place = "At the peak" if live == highest else f"Close to the peak of {format_size(highest)}"
        return f"{place}, {_timeline.seconds(seconds)} into the run: {format_size(live)} live."


def watch(pool: Arena) -> Watched:
    """Watch an arena from now on, unless it is watched already."""
    if pool._watched is None:
        pool._watched = Watched(pool)
    return pool._watched


def unwatch(pool: Arena) -> None:
    """Watch an arena no more, unless all are watched."""
    if pool._watched is not None and pool._watched not in (_all or ()):
        pool._watched = None
        pool._open.watch(None)


_all: list[Watched] | None = None  # None if arenas are not watched
_process = 0


def watch_all() -> None:
    """Watch every arena that this process creates from now on."""
    global _all, _process
    _all, _process = [], os.getpid()


def end_watching() -> None:
    """Stop watching new arenas."""
    global _all
    _all = None


def watch_if_enabled(pool: Arena) -> Watched | None:
    """Called by each new arena. Forked processes are not watched, because they make no report."""
    if _all is None or os.getpid() != _process:
        return None
    one = Watched(pool)
    _all.append(one)
    return one


def watched() -> list[Watched]:
    """All of them, by device and age."""
    return sorted(_all or [], key=lambda one: (one.device, one.number))
