"""Replays one program under one cap with two allocators."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import _core, sim
from .._pool.arena import Arena
from .._report import Report
from .._trace import Trace
from ..errors import ArenaError
from .cupy_pool import Death, play, smallest_device

__all__ = ["CAP", "TRACE", "Comparison", "compare"]

MIB = 1 << 20
TRACE = Path(__file__).with_name("pipeline.csv.gz")
CAP = 448 * MIB


@dataclass(frozen=True)
class Comparison:
    """The result of the program under the cap, with both allocators."""

    events: int
    cap: int
    death: Death
    """Where the model of CuPy's pool fails."""
    cupy_needs: int
    """The smallest device that is large enough for CuPy's pool, in whole MiB."""
    stats: _core.Stats
    """The arena's stats at the end."""
    priced_ms: float
    report: Report
    """The arena's report after the request at which CuPy's pool fails."""


def compare() -> Comparison:
    """Replay the trace with both allocators. Takes a few seconds, without a GPU."""
    trace = Trace.read(TRACE)
    events = list(trace)
    death = play(events, CAP)
    if death is None:
        raise ArenaError(f"{TRACE.name} fits CuPy's pool under {CAP} bytes: there is nothing to show")
    with Arena(cap=CAP, device="sim:1GiB", headroom=0, reserve=0, growth=64 * MIB, compact=True) as pool:
        begin = sim.clock()
        running = _core.Replay(trace._core, pool._open, len(trace))
        running.step(death.event + 1)
        report = pool.report()
        report.notes.clear()  # advice that a recorded program cannot follow
        while running.step(len(trace)):
            pass
        stats, priced = pool.stats(), (sim.clock() - begin) / 1000
        if running.misfit is not None:
            raise ArenaError(f"{TRACE.name} does not fit at event {running.done}: {running.misfit.headline}")
    cupy_needs = smallest_device(events, CAP, 2 * stats.peak_live, MIB)
    return Comparison(len(trace), CAP, death, cupy_needs, stats, priced, report)
