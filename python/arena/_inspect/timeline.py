"""The account of an arena, again and again."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING

from .._core import Allocator, Stats
from .._util.late import late_import
from .._util.shown import Shown
from ..errors import UsageError
from .snapshot import _figures

if TYPE_CHECKING:
    from .._pool.arena import Arena
    from .._report.model import Samples
    from .snapshot import Snapshot

__all__ = ["Sampler", "Timeline"]


class Timeline(Shown):
    """How the account of an arena changes, to be drawn by Perfetto (https://ui.perfetto.dev) or chrome://tracing, or
    in a report: ``pool.report(timeline=timeline)``.

    Call :meth:`sample` where it matters, or let a thread do it:
    ``with arena.Timeline(pool, interval=0.1) as timeline: ...`` samples at the beginning, every tenth of a second, and
    at the end.

    :param pool: the arena
    :param interval: the seconds between two samples of that thread (default: there is none)

    >>> import arena
    >>> pool = arena.Arena(device="sim:1GiB")
    >>> with arena.Timeline(pool) as timeline:
    ...     buffer = pool.allocate(1000)
    ...     timeline.sample()
    ...     buffer.free()
    >>> [figures["requested"] for seconds, figures in timeline.samples]
    [0, 1000, 0]
    """

    def __init__(self, pool: Arena, interval: float | None = None) -> None:
        if not isinstance(pool, Allocator):
            raise UsageError(f"pool={pool!r} is no arena.Arena")
        if interval is not None and not _is_duration(interval):
            raise UsageError(f"interval={interval!r} is not accepted; write seconds above 0 (0.1)")
        self._pool = pool
        self._interval = interval
        self._sampler: Sampler | None = None
        self._entered = False
        self._taken: list[tuple[float, Stats]] = []  # in figures they would take several times the memory

    def sample(self) -> None:
        """Take the account as it is now. It costs what :meth:`Arena.stats` does."""
        stats = self._pool.stats()
        self._taken.append((time.monotonic(), stats))

    @property
    def samples(self) -> list[tuple[float, dict[str, int]]]:
        """The samples so far: seconds of :func:`time.monotonic`, and what :meth:`Arena.stats` said then."""
        return [(seconds, _figures(stats)) for seconds, stats in list(self._taken)]

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the samples as counters in a Chrome trace, a ``.json`` file. Refuses to overwrite unless told."""
        with late_import(f"the timeline cannot be written to {path}"):
            from .._export import perfetto

        if not self._taken:
            raise UsageError("there is nothing to save: call sample() before, or use the timeline in a with statement")
        name = f"arena on device {self._pool.device}"
        taken = ((seconds, _figures(stats)) for seconds, stats in list(self._taken))
        return perfetto.write(path, taken, name=name, overwrite=overwrite)

    def _drawn(self, now: Snapshot) -> Samples | None:
        """The part of a report: the samples, and what is now."""
        with late_import("the timeline cannot be drawn"):
            from .._report import timeline as _timeline

        taken: list[_timeline.Point] = [*self._taken, (time.monotonic(), SimpleNamespace(**now.stats))]
        begin = taken[0][0]
        return _timeline.make(_timeline.thin([(at - begin, stats) for at, stats in taken]), "s")

    def __len__(self) -> int:
        return len(self._taken)

    def __enter__(self) -> Timeline:
        if self._entered:
            raise UsageError("the timeline is in use already; make another one")
        self.sample()
        self._entered = True
        if self._interval is not None:
            self._sampler = Sampler(self, self._interval)
            self._sampler.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None) -> None:
        self._entered = False
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None
        with contextlib.suppress(UsageError):  # the arena was closed, or is the parent's
            self.sample()


class Sampler(threading.Thread):
    """Takes samples. It gives the device no work, so live data may be moved although it is there."""

    def __init__(self, timeline: Timeline, interval: float) -> None:
        super().__init__(name="arena.Timeline", daemon=True)
        self._timeline = timeline
        self._interval = interval
        self._over = threading.Event()

    def start(self) -> None:
        super().start()
        atexit.register(self.stop)  # a thread must not be in the core while the interpreter goes

    def run(self) -> None:
        while not self._over.wait(self._interval):
            try:
                self._timeline.sample()
            except UsageError:  # the arena was closed
                return

    def stop(self) -> None:
        """Return when the last sample was taken."""
        atexit.unregister(self.stop)
        self._over.set()
        self.join()


def _is_duration(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 and math.isfinite(value)
