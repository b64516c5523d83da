"""Predicts the memory for batches that were not recorded, and the largest batch within a limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...errors import UsageError
from .caps import LARGEST, Replays, find_smallest
from .model import Model

__all__ = ["LargestFit", "Prediction", "Predictor"]

HIGHEST = 1 << 24  # the largest batch considered


@dataclass(frozen=True)
class Prediction:
    """The predicted need of a batch."""

    batch: int
    peak_live: int
    smallest_cap: int
    error: int
    """Both may be off by this many bytes in either direction."""
    fits: bool | None
    """Whether the smallest cap is within the limit; ``None`` without a limit."""
    sure: bool | None
    """Whether that holds for every value within the error."""


@dataclass(frozen=True)
class LargestFit:
    """The largest batch within a limit, with bounds that account for the error."""

    batch: int
    """0 if none fits."""
    at_least: int
    at_most: int | None
    """``None`` if unknown, because the error grows faster than the need."""
    peak_live: int
    smallest_cap: int


class Predictor:
    """Replays the runs that a model predicts."""

    def __init__(self, model: Model, replays: Callable[[int, int], Replays]) -> None:
        self.model = model
        self._make = replays
        self._made: dict[int, Replays] = {}

    @property
    def count(self) -> int:
        return sum(len(replays.points) for replays in self._made.values())

    def replays(self, batch: int) -> Replays:
        if batch not in self._made:
            self._made[batch] = self._make(batch, self.count)
        return self._made[batch]

    def predict(self, batch: int, limit: int | None) -> Prediction:
        if self.model.peak(batch) > LARGEST:
            raise UsageError(
                f"batch {batch} would need {self.model.peak(batch):,} bytes, which is more than any card has"
            )
        replays = self.replays(batch)
        smallest = find_smallest(replays)
        error = self.model.error(batch) + replays.granule  # the last granule may be used or not
        fits = None if limit is None else smallest <= limit
        sure = None if limit is None else (smallest + error <= limit if fits else smallest - error > limit)
        return Prediction(batch, replays.uncapped().peak_live, smallest, error, fits, sure)

    def largest(self, limit: int) -> LargestFit | None:
        """The largest batch within a limit; ``None`` if the batch makes no difference."""
        model = self.model
        most = _last(lambda batch: model.peak(batch) <= limit)
        if most is None:
            return None
        best = self._largest_that_fits(most, limit)
        if best == 0:
            return LargestFit(0, 0, 0, 0, 0)
        found = self.predict(best, limit)
        overhead = found.smallest_cap / found.peak_live
        granule = self.replays(best).granule

        def needs(batch: int, sign: int) -> float:
            return (model.peak(batch) + sign * model.error(batch)) * overhead + sign * granule

        least = best if needs(best, 1) <= limit else _last(lambda batch: needs(batch, 1) <= limit, best)
        beyond = _last(lambda batch: batch <= best or needs(batch, -1) <= limit, 4 * most)
        return LargestFit(best, best if least is None else least, beyond, found.peak_live, found.smallest_cap)

    def _largest_that_fits(self, most: int, limit: int) -> int:
        """Bisect below ``most``, whose live bytes alone fill the limit."""
        fits, fails = 0, most + 1
        for candidate in (most, most * 15 // 16):  # the overhead is a few per cent, so the answer is near
            if fits < candidate < fails:
                fits, fails = (candidate, fails) if self._fits(candidate, limit) else (fits, candidate)
        while fails - fits > 1:
            candidate = (fits + fails) // 2
            fits, fails = (candidate, fails) if self._fits(candidate, limit) else (fits, candidate)
        return fits

    def _fits(self, batch: int, limit: int) -> bool:
        replays = self.replays(batch)
        cap = limit // replays.granule * replays.granule
        return cap > 0 and replays.run(cap).fits


def _last(holds: Callable[[int], bool], most: int = HIGHEST) -> int | None:
    """The last number from 1 up to which a condition holds; 0 if it never holds, ``None`` if it always does."""
    if not holds(1):
        return 0
    low, high = 1, 2
    while high <= most and holds(high):
        low, high = high, high * 2
    if high > most:
        if holds(most):
            return None
        high = most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
