"""Replaying a trace through an arena, on a simulated device or a real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _core, sim
from .._report import Report
from ..errors import OutOfMemoryError
from ._read import Trace

if TYPE_CHECKING:
    from .._arena import Arena

__all__ = ["Replayed", "replay"]

SAMPLES = 2000  # of the account over the whole trace
STEP = 100_000  # events between two looks at the progress


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
    """The account over time, in seconds of the recorded run."""
    report: Report
    """What was held at the end."""
    priced_ms: float | None
    """Driver time by the simulated device's price table, in milliseconds; none on a real device."""

    @property
    def peak_live(self) -> int:
        """The highest value of live bytes."""
        return self.stats.peak_live

    @property
    def peak_reserved(self) -> int:
        """The highest value of reserved bytes."""
        return self.stats.peak_reserved


def replay(trace: Trace, *, progress: Callable[[int, int], object] | None = None, **settings: Any) -> Replayed:
    """Run a trace; ``progress`` is called with the events played and their number."""
    from .._arena import Arena

    settings.setdefault("device", f"sim:{trace.facts.get('device', {}).get('total', 80 << 30)}")
    pool = Arena(**settings)
    try:
        return _run(trace, pool, progress)
    finally:
        pool.close()


def _run(trace: Trace, pool: Arena, progress: Callable[[int, int], object] | None) -> Replayed:
    begin = sim.clock() if pool.is_simulated else 0.0
    running = _core.Replay(trace._core, pool._open, max(1, len(trace) // SAMPLES))
    more = True
    while more:
        more = running.step(STEP)
        if progress is not None:
            progress(running.done, len(trace))
    misfit = running.misfit
    error = None
    if misfit is not None:
        account = {name: getattr(misfit["stats"], name) for name in pool.report().account}
        error = OutOfMemoryError(misfit["text"], misfit["verdict"], misfit["requested"], misfit["largest"], account)
    return Replayed(
        fits=misfit is None,
        events=running.done,
        error=error,
        stats=pool.stats(),
        samples=[(time / 1e9, stats) for _, time, stats in running.samples],
        report=pool.report(verdict=error.verdict if error else "", request=error.requested if error else 0),
        priced_ms=(sim.clock() - begin) / 1000 if pool.is_simulated else None,
    )
