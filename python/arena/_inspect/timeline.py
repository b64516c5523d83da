"""Samples of an arena's account over time."""

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
    """Samples an arena's account over time, for Perfetto (https://ui.perfetto.dev), chrome://tracing, or a report:
    ``pool.report(timeline=timeline)``.

    Call :meth:`sample` where it matters, or let a thread do it:
    ``with arena.Timeline(pool, interval=0.1) as timeline: ...`` samples at the beginning, every tenth of a second, and
    at the end.

    :param pool: the arena
    :param interval: seconds between two samples of the thread (default: no thread)

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
            raise UsageError(f"pool={pool!r} is not an arena.Arena")
        if interval is not None and not _is_duration(interval):
            raise UsageError(f"interval={interval!r} is not accepted; write a number of seconds above 0 (0.1)")
        self._pool = pool
        self._interval = interval
        self._sampler: Sampler | None = None
        self._entered = False
        self._taken: list[tuple[float, Stats]] = []  # as dictionaries they would take several times the memory

    def sample(self) -> None:
        """Sample the account now. Costs as much as :meth:`Arena.stats`."""
        stats = self._pool.stats()
        self._taken.append((time.monotonic(), stats))

    @property
    def samples(self) -> list[tuple[float, dict[str, int]]]:
        """The samples so far: seconds of :func:`time.monotonic`, and the values of :meth:`Arena.stats` at that time."""
        return [(seconds, _figures(stats)) for seconds, stats in list(self._taken)]

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the samples as counters of a Chrome trace (``.json``). Replaces a file only with ``overwrite=True``."""
        with late_import(f"the timeline cannot be written to {path}"):
            from .._export import perfetto

        if not self._taken:
            raise UsageError("there is nothing to save: call sample() first, or use the timeline in a with statement")
        name = f"arena on device {self._pool.device}"
        taken = ((seconds, _figures(stats)) for seconds, stats in list(self._taken))
        return perfetto.write(path, taken, name=name, overwrite=overwrite)

    def _drawn(self, now: Snapshot) -> Samples | None:
        """The timeline of a report: the samples so far, and the current state."""
        with late_import("the timeline cannot be drawn"):
            from .._report import timeline as _timeline

        taken: list[_timeline.Point] = [*self._taken, (time.monotonic(), SimpleNamespace(**now.stats))]
        begin = taken[0][0]
        return _timeline.make(_timeline.thin([(at - begin, stats) for at, stats in taken]), "s")

    def __len__(self) -> int:
        return len(self._taken)

    def __enter__(self) -> Timeline:
        if self._entered:
            raise UsageError("the timeline is already in use; create another one")
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
    """The sampling thread. It launches no work, so live data may be moved while it runs."""

    def __init__(self, timeline: Timeline, interval: float) -> None:
        super().__init__(name="arena.Timeline", daemon=True)
        self._timeline = timeline
        self._interval = interval
        self._stopped = threading.Event()

    def start(self) -> None:
        super().start()
        atexit.register(self.stop)  # a thread must not be in the core while the interpreter shuts down

    def run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                self._timeline.sample()
            except UsageError:  # the arena was closed
                return

    def stop(self) -> None:
        """Stop and wait for the last sample."""
        atexit.unregister(self.stop)
        self._stopped.set()
        self.join()


def _is_duration(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 and math.isfinite(value)
