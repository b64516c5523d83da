"""Finds caps under which a trace fits with few replays, on a simulated device that is large enough for anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ... import _core, sim
from ..._pool.settings import find_device
from ..._trace import Trace
from ..._util.sizes import format_size
from ...errors import TraceError, UsageError

__all__ = ["Point", "Progress", "Replays", "comfortable_cap", "find_smallest", "is_rare", "round_up", "trade"]

LARGEST = 256 << 30  # of the device that replays run on
SAMPLES = 500  # of the account without a cap, for the first guess
PER_ALLOCATIONS = 1000  # remapping is rare if at most one in this many allocations needs it
EXACT = 100  # the comfortable cap is found to one part in this many
TRADE = (1.05, 1.1, 1.2, 1.5)  # × peak live: other caps whose cost is shown

Progress = Callable[[int, str], object]
"""Called with the number of replays so far and what comes next."""


@dataclass(frozen=True)
class Point:
    """A replay under one cap. ``later`` is the second half of the trace's events: the first is the warm-up."""

    cap: int
    fits: bool
    peak_live: int
    peak_reserved: int
    priced_ms: float
    """Driver time by the simulated device's price table."""
    later_ms: float
    maps: int
    later_maps: int
    rebacked: int
    """How often memory was re-backed: the device is idle while live data is moved."""
    later_rebacked: int
    later_allocations: int
    lacking: int
    """By how many bytes the failed request was too large; 0 if all passed."""


class Replays:
    """Replays of one trace, each cap once."""

    def __init__(
        self,
        trace: Trace,
        *,
        growth: int = 64 << 20,
        vmm: bool = True,
        compact: bool = True,
        progress: Progress | None = None,
        before: int = 0,
    ) -> None:
        self.trace = trace
        self.ended_by = trace.ended_by
        self.growth = growth
        self.vmm = vmm
        self.compact = compact
        self.progress = progress
        self.before = before  # replays of other traces, for the count that progress shows
        self.points: dict[int, Point] = {}
        self.touched = 0  # peak bytes of granules that live blocks touched without a cap, in the samples
        self.driver, self.device = find_device(f"sim:{LARGEST}")
        self.granule = _core.describe_device(self.driver, self.device).granularity

    def run(self, cap: int = LARGEST) -> Point:
        if cap not in self.points:
            if self.progress is not None:
                text = "without a cap" if cap == LARGEST else f"under a cap of {format_size(cap)}"
                self.progress(self.before + len(self.points), text)
            self.points[cap] = self._replay(cap)
        return self.points[cap]

    def uncapped(self) -> Point:
        point = self.run()
        if not point.fits:
            raise UsageError(f"it would need more than {format_size(LARGEST)}, which is more than any card has")
        if point.peak_live == 0:
            raise TraceError("the trace has no allocations: there is nothing to fit")
        return point

    def _replay(self, cap: int) -> Point:
        pool = _core.Arena(
            self.driver,
            self.device,
            cap,
            reserve=0,
            headroom=0,
            growth=self.growth,
            vmm=self.vmm,
            moves=self.compact,
            peers=[],
        )
        try:
            begin = sim.clock()
            every = len(self.trace) // (SAMPLES if cap == LARGEST else 1)
            last = self.ended_by.event if self.ended_by else None
            running = _core.Replay(self.trace._core, pool, max(1, every), compact=self.compact, ended_by=last)
            running.step(running.end // 2)
            half, middle = pool.stats(), sim.clock()
            running.step(running.end)
            stats, end, misfit = pool.stats(), sim.clock(), running.misfit
            if cap == LARGEST:
                self.touched = max((s.live + s.stranded - s.compactable for _, _, s in running.samples), default=0)
            del running  # frees its blocks
        finally:
            pool.close()
        return Point(
            cap=cap,
            fits=misfit is None,
            peak_live=stats.peak_live,
            peak_reserved=stats.peak_reserved,
            priced_ms=(end - begin) / 1000,
            later_ms=(end - middle) / 1000,
            maps=stats.maps,
            later_maps=stats.maps - half.maps,
            rebacked=stats.rebacked,
            later_rebacked=stats.rebacked - half.rebacked,
            later_allocations=stats.allocations - half.allocations,
            lacking=misfit.requested - misfit.largest if misfit else 0,
        )


def round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def find_smallest(replays: Replays) -> int:
    """The smallest cap that works: with a granule less, it fails.

    Starts from the granules that blocks touched without a cap. A failed replay shows how much was missing, which is the
    next step.
    """
    uncapped, granule = replays.uncapped(), replays.granule
    fails = round_up(uncapped.peak_live, granule) - granule  # less than what is live
    works = 0  # unknown so far
    cap = max(fails + granule, round_up(replays.touched, granule))
    while not works or works - fails > granule:
        point = replays.run(min(cap, LARGEST))
        if point.fits:
            first, works = not works, point.cap
            cap = works - granule if first else (fails + works) // 2 // granule * granule
        else:
            fails = point.cap
            cap = point.cap + max(granule, round_up(point.lacking, granule))
            if works and cap >= works:
                cap = (fails + works) // 2 // granule * granule
        cap = max(cap, fails + granule)
    return works


def is_rare(point: Point, uncapped: Point) -> bool:
    """Whether remapping is rare: see docs/fit.md."""
    few = max(2 * uncapped.later_maps, point.later_allocations / PER_ALLOCATIONS)
    return point.fits and point.later_rebacked == 0 and point.later_maps <= few


def comfortable_cap(replays: Replays, smallest: int) -> int:
    """The cap from which remapping is rare, to one part in a hundred."""
    uncapped, granule = replays.uncapped(), replays.granule
    if is_rare(replays.run(smallest), uncapped):
        return smallest
    low, high = smallest, max(smallest + granule, round_up(uncapped.peak_reserved, granule))
    while not is_rare(replays.run(high), uncapped) and high < LARGEST:
        low, high = high, min(LARGEST, round_up(high * 5 // 4, granule))
    while high - low > max(granule, high // EXACT):
        middle = round_up((low + high) // 2, granule)
        low, high = (low, middle) if is_rare(replays.run(middle), uncapped) else (middle, high)
    return high


def trade(replays: Replays, smallest: int, also: list[int]) -> tuple[Point, ...]:
    """The cost of some caps from the smallest upwards, and of none."""
    uncapped, granule = replays.uncapped(), replays.granule
    caps = {smallest, *also}
    for factor in TRADE:
        cap = round_up(int(uncapped.peak_live * factor), granule)
        if cap > smallest and all(abs(cap - other) > cap // EXACT for other in caps):
            caps.add(cap)
    points = [replays.run(cap) for cap in sorted(caps) if cap < LARGEST]
    return (*points, uncapped)
