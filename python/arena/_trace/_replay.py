"""Replaying a trace through an arena, on a simulated device or a real one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _core, sim
from .._moving import mode
from .._prices import Prices, using
from .._report import Report, _timeline
from .._report._model import line_text
from .._sizes import format_size
from .._snapshot import Piece, Snapshot
from ..errors import OutOfMemoryError, UsageError
from ._read import Trace

if TYPE_CHECKING:
    from .._arena import Arena

__all__ = ["Peak", "Replayed", "replay"]

BUCKETS = _timeline.BUCKETS  # of the whole trace, each with up to three samples of the account
Sample = tuple[int, int, _core.Stats]  # event, nanoseconds, account
STEP = 100_000  # events between two looks at the progress
_FACTS = ("text", "verdict", "requested", "largest", "largest_with_moving", "set_free_by_moving")


@dataclass(frozen=True)
class Peak:
    """When live bytes were at their highest, of all that was played."""

    event: int
    """The number of the allocation in the trace, from 0."""
    time: float
    """Its time, in seconds of the recorded run."""
    live: int
    reserved: int


@dataclass(frozen=True)
class Replayed:
    """What came of a replay."""

    fits: bool
    """Whether every allocation was met."""
    events: int
    """How many were played: all, or up to the one that did not fit."""
    error: OutOfMemoryError | None
    """Why it did not fit, if it did not."""
    stats: _core.Stats
    """The account at the end."""
    samples: list[tuple[float, _core.Stats]]
    """The account over time, in seconds of the recorded run: no more than 2,000, and none of the peaks is missing."""
    priced_ms: float | None
    """Driver time by the simulated device's price table, in milliseconds; none on a real device."""
    prices: str | None
    """Which price table that was: ``a100``, or the name of a file and what it was measured on."""
    compact: bool
    """Whether live data was moved where nothing else made room."""
    peak: Peak
    _report: Callable[[], Report] = dataclasses.field(repr=False)
    _end: Callable[[], Report] = dataclasses.field(repr=False)

    @functools.cached_property
    def report(self) -> Report:
        """What was held at the peak of live bytes or, if the trace does not fit, when the request failed."""
        return self._report()

    @functools.cached_property
    def end(self) -> Report:
        """What was held at the end."""
        return self.report if self._end is self._report else self._end()

    @property
    def peak_live(self) -> int:
        """The highest value of live bytes."""
        return self.stats.peak_live

    @property
    def peak_reserved(self) -> int:
        """The highest value of reserved bytes."""
        return self.stats.peak_reserved


def replay(
    trace: Trace,
    *,
    progress: Callable[[int, int], object] | None = None,
    prices: Prices | None = None,
    **settings: Any,
) -> Replayed:
    """Run a trace; ``progress`` is called with the events played and their number."""
    from .._arena import Arena

    if settings.get("compact", "auto") == "auto":
        settings["compact"] = True  # nobody but the replay gives its device work
    settings.setdefault("device", f"sim:{trace.facts.get('device', {}).get('total', 80 << 30)}")
    pool = Arena(**settings)
    try:
        if pool.is_simulated:
            with using(prices, vmm=pool.vmm) as table:
                return Run(trace, pool, progress, table.label).whole()
        if prices is not None:
            raise UsageError(f"prices={str(prices)!r}: only simulated devices have prices; leave it out on a real one")
        return Run(trace, pool, progress, None).whole()
    finally:
        pool.close()


class Run:
    """A trace that is being replayed."""

    def __init__(
        self, trace: Trace, pool: Arena, progress: Callable[[int, int], object] | None, prices: str | None
    ) -> None:
        lines = {number: _core.number_of_lines(found) for number, found in trace.lines.items() if found}
        self._trace, self._pool, self._progress, self._prices = trace, pool, progress, prices
        every = max(1, -(-len(trace) // BUCKETS))
        self._compact = pool._compact is not False
        self._core = _core.Replay(trace._core, pool._open, every, lines, self._compact)
        self._timed = trace.timed and len(trace) > 0 and trace[-1].time > 0

    def whole(self) -> Replayed:
        begin = self._clock()
        at_peak = None
        if len(self._trace) and self._go_to(self._core.highest + 1):
            begin_of_look = self._clock()
            at_peak = self._snapshot()
            begin += self._clock() - begin_of_look  # to look at it is no part of the run
        self._go_to(len(self._trace))
        priced = self._clock() - begin
        at_end, error = self._snapshot(), self._error()
        samples = self._core.samples
        end = self._reporter(at_end, samples, self._at_end(error), error)
        report = end if error or at_peak is None else self._reporter(at_peak, samples, self._at_peak(), None)
        event, time, live, reserved = self._core.peak
        return Replayed(
            fits=error is None,
            events=self._core.done,
            error=error,
            stats=self._pool.stats(),
            samples=[(at / 1e9, stats) for _, at, stats in samples],
            priced_ms=priced / 1000 if self._pool.is_simulated else None,
            prices=self._prices,
            compact=self._compact,
            peak=Peak(event, time / 1e9, live, reserved),
            _report=report,
            _end=end,
        )

    def _go_to(self, event: int) -> bool:
        """Whether all before that event fitted."""
        while self._core.done < event and self._core.misfit is None:
            self._core.step(min(STEP, event - self._core.done))
            if self._progress is not None:
                self._progress(self._core.done, len(self._trace))
        return self._core.misfit is None

    def _clock(self) -> float:
        return sim.clock() if self._pool.is_simulated else 0.0

    def _error(self) -> OutOfMemoryError | None:
        misfit = self._core.misfit
        if misfit is None:
            return None
        from .._report._build import ACCOUNT

        account = {name: getattr(misfit["stats"], name) for name in ACCOUNT}
        facts = {name: misfit[name] for name in _FACTS}
        moving = mode(self._compact, is_plain=self._pool._open.is_plain, is_allowed=self._compact)
        return OutOfMemoryError(**facts, account=account, moving=moving)

    def _snapshot(self) -> Snapshot:
        """What there is, with the streams and, if they are known, the times of the recorded run."""
        snapshot = self._pool.snapshot()
        origins = iter(self._core.origins([piece.address for piece in snapshot.live]))
        now = round(self._trace[self._core.done - 1].time * 1e9) if self._core.done else 0

        def recorded(piece: Piece) -> Piece:
            if piece.state != "live":
                return piece
            born, stream = next(origins)
            return piece._replace(stream=stream, age=max(0, now - born) / 1e9 if self._timed else None)

        return dataclasses.replace(snapshot, pieces=[recorded(piece) for piece in snapshot.pieces])

    def _place(self, event: int) -> str:
        when = f", {_timeline.seconds(self._trace[event].time)} into the run" if self._timed else ""
        return f"event {event:,} of {len(self._trace):,}{when}"

    def _at_peak(self) -> str:
        return f"Replayed up to {self._place(self._core.highest)}: the most was live then."

    def _at_end(self, error: OutOfMemoryError | None) -> str:
        if not self._core.done:
            return "Replayed: the trace has no events."
        last = self._core.done - 1
        if error is None:
            return f"Replayed up to the end, {self._place(last)}."
        asker = line_text(self._trace.lines.get(self._trace[last].line, ()))
        return f"Replayed up to {self._place(last)}: it asked for {format_size(error.requested)}" + (
            f" from {asker}." if asker else "."
        )

    def _reporter(
        self, snapshot: Snapshot, samples: list[Sample], moment: str, error: OutOfMemoryError | None
    ) -> Callable[[], Report]:
        """Reports take longer than many a replay, so they are made when they are asked for."""
        return functools.partial(
            _report_of,
            snapshot,
            samples,
            "s" if self._timed else "events",
            device_name=self._pool._name,
            simulated=self._pool.is_simulated,
            verdict=error.verdict if error else "",
            request=error.requested if error else 0,
            moment=moment,
        )


def _report_of(snapshot: Snapshot, samples: list[Sample], unit: str, **facts: Any) -> Report:
    points = [(time / 1e9 if unit == "s" else event, stats) for event, time, stats in samples]
    return Report.of(snapshot, timeline=_timeline.make(points, unit), **facts)
