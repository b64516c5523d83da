"""Replays a trace in an arena, on a simulated device or a real one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import _core, sim
from .._inspect.holders import line_text
from .._inspect.snapshot import Piece, Snapshot
from .._pool.arena import Arena
from .._pool.oom import snapshot_of
from .._report import Report, timeline
from .._report.failure import held_in_words, who_held
from .._trace.failures import Failure, Survived
from .._trace.read import Trace
from .._util.shown import Shown
from .._util.sizes import format_size
from .._words.moving import mode
from ..errors import OutOfMemoryError, UsageError
from .prices import Prices, using

__all__ = ["Peak", "Replayed", "replay"]

BUCKETS = timeline.BUCKETS  # in the whole trace, each with up to three samples of the account
Sample = tuple[int, int, _core.Stats]  # event, nanoseconds, account
STEP = 100_000  # events between two updates of the progress


@dataclass(frozen=True, repr=False)
class Peak(Shown):
    """The peak of live bytes in the replayed part of the trace."""

    event: int
    """The index of the allocation in the trace, from 0."""
    time: float
    """Its time, in seconds of the recorded run."""
    live: int
    reserved: int


@dataclass(frozen=True, repr=False)
class Replayed(Shown):
    """The result of a replay."""

    fits: bool | None
    """Whether every allocation succeeded. ``None`` if that is unknown: everything recorded fits, but the recorded run
    ended with a failed request."""
    events: int
    """The number of events replayed: all, or up to the one that did not fit or that ended the recorded run."""
    error: OutOfMemoryError | None
    """Why it did not fit, if it did not."""
    stats: _core.Stats
    """The account at the end."""
    samples: list[tuple[float, _core.Stats]]
    """The account over time, in seconds of the recorded run: at most 2,000 samples, including all peaks."""
    priced_ms: float | None
    """Driver time by the simulated device's price table, in milliseconds; ``None`` on a real device."""
    prices: str | None
    """The price table: ``a100``, or the name of a file and what it was measured on."""
    compact: bool
    """Whether live data could be moved if nothing else made room."""
    peak: Peak
    ended_by: Failure | None
    """The failed request that ended the recorded run, if any. The replay tries it, and nothing after it."""
    survived: Survived
    """The failed requests after which the recorded program continued. The replay skips them."""
    _report: Callable[[], Report] = dataclasses.field(repr=False)
    _end: Callable[[], Report] = dataclasses.field(repr=False)

    @functools.cached_property
    def report(self) -> Report:
        """The report of the peak of live bytes or, if the trace does not fit, of the failed request."""
        return self._report()

    @functools.cached_property
    def end(self) -> Report:
        """The report of the end."""
        return self.report if self._end is self._report else self._end()

    @property
    def peak_live(self) -> int:
        """The peak of live bytes."""
        return self.stats.peak_live

    @property
    def peak_reserved(self) -> int:
        """The peak of reserved bytes."""
        return self.stats.peak_reserved


def replay(
    trace: Trace,
    *,
    progress: Callable[[int, int], object] | None = None,
    prices: Prices | None = None,
    **settings: Any,
) -> Replayed:
    """Replay a trace. ``progress`` is called with the number of events replayed and their total."""
    if settings.get("compact", "auto") == "auto":
        settings["compact"] = True  # only the replay launches work on its device
    settings.setdefault("device", f"sim:{trace.facts.get('device', {}).get('total', 80 << 30)}")
    pool = Arena(**settings)
    try:
        if pool.is_simulated:
            with using(prices, vmm=pool.vmm) as table:
                return Run(trace, pool, progress, table.label).whole()
        if prices is not None:
            raise UsageError(f"prices={str(prices)!r}: only simulated devices have prices; omit it for a real device")
        return Run(trace, pool, progress, None).whole()
    finally:
        pool.close()


class Run:
    """A trace that is being replayed."""

    def __init__(
        self, trace: Trace, pool: Arena, progress: Callable[[int, int], object] | None, prices: str | None
    ) -> None:
        lines = {
            number: _core.number_of_lines(trace.lines.get(number, ()), known_framework(trace.frameworks.get(number)))
            for number in trace.lines.keys() | trace.frameworks.keys()
        }
        self._trace, self._pool, self._progress, self._prices = trace, pool, progress, prices
        every = max(1, -(-len(trace) // BUCKETS))
        self._compact = pool._compact is not False
        self._ended_by = trace.ended_by
        last = self._ended_by.event if self._ended_by else None
        self._core = _core.Replay(trace._core, pool._open, every, lines, self._compact, last)
        self._timed = trace.timed and len(trace) > 0 and trace[-1].time > 0

    def whole(self) -> Replayed:
        begin = self._clock()
        at_peak = None
        if len(self._trace) and self._go_to(self._core.highest + 1):
            before = self._clock()
            at_peak = self._snapshot()
            begin += self._clock() - before  # the snapshot is not part of the run
        self._go_to(self._core.end)
        priced = self._clock() - begin
        error, at_end = self._end()
        samples = self._core.samples
        end = self._reporter(at_end, samples, self._at_end(error), error)
        report = end if error or at_peak is None else self._reporter(at_peak, samples, self._at_peak(), None)
        event, time, live, reserved = self._core.peak
        return Replayed(
            fits=False if error else None if self._ended_by else True,
            events=self._core.done,
            error=error,
            stats=self._pool.stats(),
            samples=[(at / 1e9, stats) for _, at, stats in samples],
            priced_ms=priced / 1000 if self._pool.is_simulated else None,
            prices=self._prices,
            compact=self._compact,
            peak=Peak(event, time / 1e9, live, reserved),
            ended_by=self._ended_by,
            survived=self._trace.survived,
            _report=report,
            _end=end,
        )

    def _go_to(self, event: int) -> bool:
        """Replay up to an event, and return whether everything before it fits."""
        while self._core.done < event and self._core.misfit is None:
            self._core.step(min(STEP, event - self._core.done))
            if self._progress is not None:
                self._progress(self._core.done, self._core.end)
        return self._core.misfit is None

    def _clock(self) -> float:
        return sim.clock() if self._pool.is_simulated else 0.0

    def _end(self) -> tuple[OutOfMemoryError | None, Snapshot]:
        """The error that ended the replay early, if any, and a snapshot of that moment."""
        misfit = self._core.misfit
        if misfit is None:
            return None, self._snapshot()
        moving = mode(self._compact, is_plain=self._pool._open.is_plain, is_allowed=self._compact)
        snapshot = self._snapshot(snapshot_of(self._pool, misfit, moving))
        held = held_in_words(who_held(snapshot, None), "")
        return misfit.error(moving=moving, line=self._failed_line(), holders=tuple(held)), snapshot

    def _failed_line(self) -> str:
        """The line of the recorded program that made the failed request."""
        return line_text(self._trace.lines.get(self._trace[self._core.done - 1].line, ()))

    def _snapshot(self, taken: Snapshot | None = None) -> Snapshot:
        """A snapshot with the streams and, if known, the times of the recorded run."""
        snapshot = taken or self._pool.snapshot()
        origins = iter(self._core.origins([piece.address for piece in snapshot.live]))
        now = round(self._trace[self._core.done - 1].time * 1e9) if self._core.done else 0

        def recorded(piece: Piece) -> Piece:
            if piece.state != "live":
                return piece
            born, stream = next(origins)
            return piece._replace(stream=stream, age=max(0, now - born) / 1e9 if self._timed else None)

        return dataclasses.replace(snapshot, pieces=[recorded(piece) for piece in snapshot.pieces])

    def _place(self, event: int) -> str:
        when = f", {timeline.seconds(self._trace[event].time)} into the run" if self._timed else ""
        return f"event {event:,} of {len(self._trace):,}{when}"

    def _at_peak(self) -> str:
        highest = self._core.highest
        if self._ended_by and self._ended_by.event == highest:
            return f"Replayed up to {self._place(highest)}, which failed in the recorded run, but passed here."
        return f"Replayed up to {self._place(highest)}: the peak of live bytes."

    def _at_end(self, error: OutOfMemoryError | None) -> str:
        if not self._core.done:
            return "Replayed: the trace has no events."
        last = self._core.done - 1
        if error is None:
            end = "the failed request that ended the recorded run" if self._ended_by else "the end"
            return f"Replayed up to {end}, {self._place(last)}."
        origin = f" from {error.line}" if error.line else ""
        return f"Replayed up to {self._place(last)}: a request of {format_size(error.requested)}{origin}."

    def _reporter(
        self, snapshot: Snapshot, samples: list[Sample], moment: str, error: OutOfMemoryError | None
    ) -> Callable[[], Report]:
        """A function that builds the report. Reports take longer than many replays, so they are built on demand."""
        return functools.partial(
            _report_of,
            snapshot,
            samples,
            "s" if self._timed else "events",
            **self._pool._device_facts,
            failure=error,
            held=who_held(snapshot, None) if error else (),
            moment=moment,
        )


def known_framework(name: str | None) -> str:
    """The framework of a recorded request; empty if there is none, or a newer arena wrote it."""
    return name if name in _core.FRAMEWORKS else ""


def _report_of(snapshot: Snapshot, samples: list[Sample], unit: str, **facts: Any) -> Report:
    points = [(time / 1e9 if unit == "s" else event, stats) for event, time, stats in samples]
    return Report.of(snapshot, timeline=timeline.make(points, unit), **facts)
