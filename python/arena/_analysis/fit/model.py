"""Fits how each allocation grows with the batch: a fixed part and a part per item, by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..._trace import Trace
from ..._words.account import ALIGNMENT, rounded
from ...errors import UsageError
from .align import NONE, align
from .runs import Key, Run, live_at_peak, peak_live, peaks_by_key

__all__ = ["Model", "Site", "weights"]

COMMON = 0.05  # share of the bytes: with less in common, two traces are not of the same program


@dataclass(frozen=True)
class Site:
    """What a line, or allocations of one size, hold at the peak, according to the fit."""

    where: str
    fixed: int
    """Bytes that do not depend on the batch."""
    per_item: int
    """Bytes per item of the batch."""


def weights(batches: Sequence[int], batch: int) -> list[float]:
    """The weight of each recorded value in the value at ``batch`` on the least-squares line."""
    mean = sum(batches) / len(batches)
    spread = sum((b - mean) ** 2 for b in batches)
    return [1 / len(batches) + (batch - mean) * (b - mean) / spread for b in batches]


class Model:
    """Runs of one program, aligned with that of the largest batch, whose order of events is used for all batches.

    Each allocation that occurs in all runs gets its own linear fit of its sizes. The others share one fit per source
    line, or per run if lines are unknown, of the peak of the bytes that they hold together.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        if not all(run.has_lines for run in runs):
            for run in runs:
                run.forget_lines()  # they cannot be compared with runs without lines
        self.runs = runs
        self.batches = [run.batch for run in runs]
        self.template = max(runs, key=lambda run: run.batch)
        self.places = [align(run, self.template) for run in runs]
        self._peaks: dict[int, int] = {}
        self._find_kinds()
        self._group()
        self._refuse_unrelated()

    def _find_kinds(self) -> None:
        """Collect the distinct combinations of sizes over the runs: there are few."""
        self.kinds: list[tuple[int, ...]] = []
        numbers: dict[tuple[int, ...], int] = {}
        self.kind_of: list[int] = []  # by allocation of the template; NONE if it is not in all runs
        for places in zip(*self.places, strict=True):
            if NONE in places:
                self.kind_of.append(NONE)
                continue
            sizes = tuple(run.sizes[place] for run, place in zip(self.runs, places, strict=True))
            if sizes not in numbers:
                numbers[sizes] = len(self.kinds)
                self.kinds.append(sizes)
            self.kind_of.append(numbers[sizes])

    def _group(self) -> None:
        """Find the peak of the bytes that allocations without counterparts hold in each run, by key."""
        self.groups: dict[Key, list[int]] = {}
        for index, (run, places) in enumerate(zip(self.runs, self.places, strict=True)):
            alone = [True] * len(run.sizes)
            for place, kind in zip(places, self.kind_of, strict=True):
                if kind != NONE:
                    alone[place] = False
            for key, held in peaks_by_key(run, alone).items():
                self.groups.setdefault(key, [0] * len(self.runs))[index] = held

    def _refuse_unrelated(self) -> None:
        """Raise if the runs have too little in common for a prediction."""
        if not self.template.has_lines:
            common, what = self.aligned, "allocations"
        else:
            keys = set.intersection(*({lines for lines, _ in run.keys} for run in self.runs))
            sizes = zip(self.template.sizes, self.template.keys, strict=True)
            common = sum(size for size, (lines, _) in sizes if lines in keys) / max(1, sum(self.template.sizes))
            what = "lines"
        if common < COMMON:
            hint = "" if self.template.has_lines else ", or record both with ARENA_LINES=1"
            raise UsageError(
                f"only {common:.0%} of the bytes of batch {self.template.batch} come from {what} that are in all "
                f"traces, so they cannot be compared; give traces of one program{hint}"
            )

    @cached_property
    def aligned(self) -> float:
        """The share of the largest run's bytes whose allocations occur in all runs."""
        sizes = self.template.sizes
        known = sum(size for size, kind in zip(sizes, self.kind_of, strict=True) if kind != NONE)
        return known / max(1, sum(sizes))

    def sizes(self, batch: int, without: int | None = None) -> list[int]:
        """The size of each allocation at a batch; ``without`` leaves out one run, to see how well it is predicted."""
        chosen = [index for index in range(len(self.runs)) if index != without]
        factors = weights([self.batches[index] for index in chosen], batch)

        def at(values: Sequence[int]) -> float:
            return sum(values[index] * factor for index, factor in zip(chosen, factors, strict=True))

        kinds = [max(0, round(at(values))) for values in self.kinds]
        last = self.runs.index(self.template)
        scales = {key: max(0.0, at(held) / held[last]) for key, held in self.groups.items() if held[last]}
        template = self.template
        return [
            kinds[kind] if kind != NONE else round(size * scales.get(key, 1.0))
            for kind, size, key in zip(self.kind_of, template.sizes, template.keys, strict=True)
        ]

    def peak(self, batch: int) -> int:
        """The peak of live bytes at a batch."""
        if batch not in self._peaks:
            self._peaks[batch] = peak_live(self.template, self.sizes(batch))[0]
        return self._peaks[batch]

    def trace(self, batch: int) -> Trace:
        """The run at a batch."""
        return self.template.with_sizes(self.sizes(batch))

    @cached_property
    def misses(self) -> dict[int, int]:
        """The error of the fit at the peak of each recorded batch."""
        return {run.batch: self.peak(run.batch) - peak_live(run, run.sizes)[0] for run in self.runs}

    @cached_property
    def left_out(self) -> dict[int, int]:
        """The error of each run's peak when predicted from the other runs; needs three batches."""
        if len(set(self.batches)) < 3:
            return {}
        return {
            run.batch: peak_live(self.template, self.sizes(run.batch, index))[0] - peak_live(run, run.sizes)[0]
            for index, run in enumerate(self.runs)
            if len(set(self.batches[:index] + self.batches[index + 1 :])) > 1
        }

    def error(self, batch: int) -> int:
        """The possible error of the peak at a batch: see docs/fit.md."""
        sizes = self.sizes(batch)
        live = live_at_peak(self.template, sizes)
        reach = sum(abs(weight) for weight in weights(self.batches, batch))
        growing = sum(1 for allocation in live if self._grows(allocation))
        error = ALIGNMENT * growing * reach + max(map(abs, self.misses.values())) * reach
        if self.left_out:
            error += self._bend() * abs(_bulge(self.batches, batch))
        else:  # unknown whether allocations without a counterpart would have grown
            error += sum(
                abs(rounded(sizes[allocation]) - rounded(self.template.sizes[allocation]))
                for allocation in live
                if self.kind_of[allocation] == NONE
            )
        return round(error)

    def _grows(self, allocation: int) -> bool:
        kind = self.kind_of[allocation]
        return kind == NONE or len(set(self.kinds[kind])) > 1

    def _bend(self) -> float:
        """The strongest curvature, in bytes per squared item, that predictions without one run show."""
        bends = [0.0]
        for index, run in enumerate(self.runs):
            others = self.batches[:index] + self.batches[index + 1 :]
            bulge = _bulge(others, run.batch) if len(set(others)) > 1 else 0.0
            if bulge and run.batch in self.left_out:
                bends.append(abs(self.left_out[run.batch] / bulge))
        return max(bends)

    def sites(self, batch: int) -> list[Site]:
        """The holders of memory at the peak of a batch, fastest growing first."""
        sizes, more = self.sizes(batch), self.sizes(batch + 1)
        sums: dict[str, list[int]] = {}
        for allocation in live_at_peak(self.template, sizes):
            entry = sums.setdefault(self._where(allocation), [0, 0])
            entry[0] += sizes[allocation]
            entry[1] += more[allocation] - sizes[allocation]
        found = [Site(where, held - batch * item, item) for where, (held, item) in sums.items()]
        return sorted(found, key=lambda site: (-site.per_item, -site.fixed))

    def _where(self, allocation: int) -> str:
        lines = self.template.keys[allocation][0]
        if lines:
            return f"{Path(lines[0].file).name}:{lines[0].line} in {lines[0].function}"
        return f"{self.template.sizes[allocation]:,} bytes at batch {self.template.batch}"


def _bulge(batches: Sequence[int], batch: int) -> float:
    """The error of the straight line through the squares of other batches at the square of this batch."""
    factors = weights(batches, batch)
    return batch**2 - sum(b**2 * factor for b, factor in zip(batches, factors, strict=True))
