"""Matches the allocations of two runs of the same program with different batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..._words.account import ALIGNMENT
from .runs import Key, Run

__all__ = ["NONE", "align"]

NONE = -1  # no counterpart
FAR = 4096  # allocations that one run may be ahead
NEAR = 48  # allocations that both runs may have and the other not
AGREE = 3  # allocations in a row that must match for two places to be the same
SLACK = 1.02
PATIENCE = 5_000_000  # comparisons before the rest is left unmatched


def align(run: Run, template: Run) -> list[int]:
    """For each allocation of ``template``, its counterpart in ``run``, or :data:`NONE`.

    Runs with the same operations in the same order match one to one. Otherwise source lines decide, if they are known.
    If not, the allocations are compared side by side; where they differ, both runs skip to the nearest places from
    which they agree again.
    """
    if run.operations == template.operations and run.keys == template.keys:
        return list(range(len(template.sizes)))
    if run.has_lines and template.has_lines:
        return _by_line(run, template)
    return _Matching(run, template).match()


def _by_line(run: Run, template: Run) -> list[int]:
    """The nth allocation of a line matches the nth in the other run, if both runs have equally many.

    For other lines, the nth since the same allocation of such a steady line matches.
    """
    counts, others = Counter(run.keys), Counter(template.keys)
    steady = {key for key, count in counts.items() if others[key] == count}
    places = {name: place for place, name in enumerate(_names(run, steady))}
    return [places.get(name, NONE) for name in _names(template, steady)]


def _names(run: Run, steady: set[Key]) -> Iterator[tuple[object, ...]]:
    """A name for each allocation of a run, in order."""
    seen, since = Counter[Key](), Counter[Key]()
    last: tuple[object, ...] = ()
    for key in run.keys:
        if key in steady:
            seen[key] += 1
            last = (key, seen[key])
            since.clear()
            yield last
        else:
            since[key] += 1
            yield (last, key, since[key])


class _Matching:
    """Matches side by side, by stream and by sizes that a change of batch can explain."""

    def __init__(self, run: Run, template: Run) -> None:
        self.run = run
        self.template = template
        ratio = template.batch / run.batch
        self.least, self.most = min(1.0, ratio) / SLACK, max(1.0, ratio) * SLACK
        self.patience = PATIENCE

    def match(self) -> list[int]:
        found = [NONE] * len(self.template.sizes)
        i = j = 0
        while i < len(self.run.sizes) and j < len(self.template.sizes) and self.patience > 0:
            if not self.alike(i, j):
                i, j = self.next_place(i, j)
                continue
            found[j] = i
            i, j = i + 1, j + 1
        return found

    def alike(self, i: int, j: int) -> bool:
        if self.run.keys[i] != self.template.keys[j]:
            return False
        size = self.run.sizes[i]
        return size * self.least - ALIGNMENT <= self.template.sizes[j] <= size * self.most + ALIGNMENT

    def agrees(self, i: int, j: int) -> bool:
        self.patience -= 1
        ends = len(self.run.sizes) - i, len(self.template.sizes) - j
        if min(ends) <= 0:
            return False
        return all(self.alike(i + step, j + step) for step in range(min(AGREE, *ends)))

    def next_place(self, i: int, j: int) -> tuple[int, int]:
        for ahead in range(1, FAR):
            if self.agrees(i, j + ahead):
                return i, j + ahead
            if self.agrees(i + ahead, j):
                return i + ahead, j
        for both in range(2, 2 * NEAR):
            for mine in range(1, both):
                if self.agrees(i + mine, j + both - mine):
                    return i + mine, j + both - mine
        return i + 1, j + 1
