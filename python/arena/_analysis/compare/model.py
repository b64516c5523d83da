"""The model of a comparison: replays, each with a letter, and their figures side by side."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..._inspect.snapshot import _figures
from ..._trace import Trace
from ..._util import files
from ..._util.shown import Shown
from ..._util.sizes import format_size
from ...errors import UsageError
from ..replay import Replayed

__all__ = ["FIGURES", "Cell", "Comparison", "Point", "Run"]


class Point(NamedTuple):
    """The account at a moment of a run."""

    seconds: float
    share: float
    """The share of the trace's events replayed so far."""
    live: int
    reserved: int


@dataclass(frozen=True)
class Run:
    """One of the replays."""

    letter: str
    name: str
    """What distinguishes it from the others."""
    trace: Trace
    settings: dict[str, Any]
    done: Replayed

    @functools.cached_property
    def points(self) -> list[Point]:
        """Live and reserved bytes over the trace."""
        event, every = self.trace._core.event, range(self.done.events)
        found = []
        for seconds, stats in self.done.samples:
            played = bisect.bisect_right(every, round(seconds * 1e9), key=lambda index: event(index)[1])
            found.append(Point(seconds, played / len(self.trace), stats.live, stats.reserved))
        return found

    @property
    def is_whole(self) -> bool:
        """Whether the whole trace was replayed, so that its figures can be compared."""
        return self.done.error is None

    @property
    def verdict(self) -> str:
        """Whether it fits, in a word."""
        return {True: "yes", False: "no", None: "unknown"}[self.done.fits]

    @property
    def stopped(self) -> str:
        """Where it did not fit, as text; empty if it did."""
        error = self.done.error
        if error is None:
            return ""
        place = f"event {self.done.events - 1:,} of {len(self.trace):,}"
        return f"{place}, a request of {format_size(error.requested)}: {error.verdict}"

    def to_dict(self) -> dict[str, Any]:
        error = self.done.error
        return {
            "letter": self.letter,
            "name": self.name,
            "settings": self.settings,
            "fits": self.done.fits,
            "ended_by": dataclasses.asdict(self.done.ended_by) if self.done.ended_by else None,
            "events": self.done.events,
            "of": len(self.trace),
            "verdict": error.verdict if error else None,
            "requested": error.requested if error else None,
            "largest": error.largest if error else None,
            "largest_with_moving": error.largest_with_moving if error else None,
            "set_free_by_moving": error.set_free_by_moving if error else None,
            "priced_ms": self.done.priced_ms,
            "prices": self.done.prices,
            "stats": _figures(self.done.stats),
        }


class Figure(NamedTuple):
    """A row of the table."""

    title: str
    of: Callable[[Replayed], float | None]
    show: Callable[[float], str]
    better: int = 0
    """Below 0 if less is better, above 0 if more is better, otherwise 0."""


def _size(value: float) -> str:
    return format_size(round(value))


def _count(value: float) -> str:
    return f"{round(value):,}"


FIGURES = (
    Figure("events played", lambda done: done.events, _count),
    Figure("cap", lambda done: done.stats.cap, _size),
    Figure("peak live", lambda done: done.peak_live, _size, -1),
    Figure("peak reserved", lambda done: done.peak_reserved, _size, -1),
    Figure("reserved ÷ live", lambda done: _ratio(done), lambda value: f"{value:.3f}", -1),
    Figure("reserved at the end", lambda done: done.stats.reserved, _size, -1),
    Figure("largest request at the end", lambda done: done.stats.largest, _size, 1),
    Figure("driver calls", lambda done: done.stats.driver_calls, _count, -1),
    Figure("maps", lambda done: done.stats.maps, _count, -1),
    Figure("re-backings", lambda done: done.stats.rebacked, _count, -1),
    Figure("waits", lambda done: done.stats.waits, _count, -1),
    Figure("driver time", lambda done: done.priced_ms, lambda value: f"{value:.1f} ms", -1),
)


def _ratio(done: Replayed) -> float | None:
    return done.peak_reserved / done.peak_live if done.peak_live else None


class Cell(NamedTuple):
    """A figure of a run."""

    text: str
    change: str
    """From the base run: ``+7.1 %``; may be empty."""
    best: bool


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Replays side by side, from :func:`arena.compare`."""

    runs: tuple[Run, ...]

    @property
    def fits(self) -> bool | None:
        """Whether all of them fit; ``None`` if that is unknown, because a recorded run did not finish."""
        verdicts = {run.done.fits for run in self.runs}
        return False if False in verdicts else None if None in verdicts else True

    @property
    def base(self) -> Run | None:
        """The run that the others are compared with: the first whose whole trace was replayed."""
        return next((run for run in self.runs if run.is_whole), None)

    @property
    def axis(self) -> str:
        """The axis of the chart: ``time``, or ``events`` if the times are unknown or not comparable."""
        first = self.runs[0].trace
        return "time" if all(run.trace is first for run in self.runs) and first.timed else "events"

    @property
    def caption(self) -> str:
        """The result in a few sentences."""
        from .words import caption  # late: it imports this model

        return caption(self)

    def row(self, figure: Figure) -> list[Cell]:
        """A figure of each run. Changes and the best consider only runs whose whole trace was replayed."""
        if not isinstance(figure, Figure):
            raise UsageError(f"{figure!r} is not a figure of a comparison")
        values = [figure.of(run.done) for run in self.runs]
        known = [value for value, run in zip(values, self.runs, strict=True) if value is not None and run.is_whole]
        base = figure.of(self.base.done) if self.base else None
        best = None
        if figure.better and len(set(known)) > 1:
            best = min(known) if figure.better < 0 else max(known)
        return [
            Cell(
                "unknown" if value is None else figure.show(value),
                _change(base, value) if run.is_whole else "",
                value == best and run.is_whole,
            )
            for value, run in zip(values, self.runs, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return {"fits": self.fits, "caption": self.caption, "runs": [run.to_dict() for run in self.runs]}

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Save as ``.html``, ``.json`` or ``.txt``, by the extension. Replaces a file only with ``overwrite=True``."""
        from . import html  # late: renderers import this model
        from . import text as _text  # late: renderers import this model

        renderers = {".html": html.render, ".json": _text.render_json, ".txt": _text.render}
        target = files.check(path, overwrite=overwrite, endings=tuple(renderers))
        return files.write(target, [renderers[target.suffix](self).encode("utf-8", "replace")], overwrite=overwrite)

    def __str__(self) -> str:
        from . import text as _text  # late: renderers import this model

        return _text.render(self)


def _change(first: float | None, value: float | None) -> str:
    if not first or value is None or first == value:
        return ""
    if value >= 10 * first:
        return f"×{value / first:.0f}"
    change = f"{value / first - 1:+.1%}".replace("%", " %")
    return change if change not in ("+0.0 %", "-0.0 %") else ""
