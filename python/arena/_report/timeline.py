"""The account over time: thins samples, describes them, and draws them as rows of characters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Protocol

from .._util.sizes import format_size
from .model import FIGURES, Samples

__all__ = [
    "Point",
    "chart",
    "instant",
    "make",
    "mark",
    "most_of",
    "seconds",
    "squeeze",
    "thin",
    "thin_indices",
    "words",
]

BUCKETS = 650  # three samples of each are kept
ROWS = 8
LEAST_COLUMNS = 8
LIVE, RESERVED = "▁▂▃▄▅▆▇█", "░"


class Account(Protocol):
    """The part of Stats that is drawn."""

    @property
    def live(self) -> int: ...
    @property
    def reserved(self) -> int: ...


Point = tuple[float, Account]


def thin(points: Sequence[Point], buckets: int = BUCKETS) -> list[Point]:
    """Thin out samples: keep the maximum and minimum of live bytes and the maximum of reserved bytes per bucket.

    The last sample is kept, too. A replay applies the same rule before it takes samples.
    """
    live, reserved = ([getattr(account, name) for _, account in points] for name in ("live", "reserved"))
    return [points[index] for index in thin_indices(live, reserved, buckets)]


def thin_indices(live: Sequence[int], reserved: Sequence[int], buckets: int) -> list[int]:
    """The indices of the samples that :func:`thin` keeps."""
    many = len(live)
    if many <= 3 * buckets:
        return list(range(many))
    kept = {many - 1}
    for _, group in groupby(range(many), lambda index: index * buckets // many):
        bucket = list(group)
        kept.update((max(bucket, key=live.__getitem__), min(bucket, key=live.__getitem__)))
        kept.add(max(bucket, key=reserved.__getitem__))
    return sorted(kept)


def make(points: Sequence[Point], unit: str) -> Samples | None:
    """The timeline of a report; ``None`` without points. ``unit`` is ``s`` or ``events``, counted from the first."""
    if not points:
        return None
    figures = {name: [int(getattr(account, name)) for _, account in points] for name in FIGURES}
    live = figures["live"]
    return Samples(unit, [at for at, _ in points], figures, peak=live.index(max(live)))


def instant(samples: Samples, index: int) -> str:
    """When a sample was taken: ``event 3,200``, or ``1.25 s``."""
    at = samples.at[index]
    return f"event {round(at):,}" if samples.unit == "events" else seconds(at)


def seconds(value: float) -> str:
    """Format a duration: ``12.5 µs``, ``3.2 s``, ``2 h 5 min``."""
    if value >= 3600:
        return f"{value // 3600:.0f} h {value % 3600 // 60:.0f} min"
    if value >= 60:
        return f"{value // 60:.0f} min {value % 60:.0f} s"
    for unit, scale in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if value * scale >= 1 or unit == "µs":
            return f"{value * scale:.3g} {unit}"
    raise AssertionError


def words(samples: Samples, failed: bool = False) -> str:
    """Describe the chart."""
    reserved, cap, size = samples.figures["reserved"], samples.figures["cap"], format_size
    highest, peak = reserved.index(max(reserved)), samples.peak
    live = f"Live memory peaked at {instant(samples, peak)}: {size(samples.figures['live'][peak])}"
    if reserved[peak] == reserved[highest]:
        most = f", and reserved memory with it: {size(reserved[peak])} of a cap of {size(cap[peak])}."
    else:
        most = (
            f", with {size(reserved[peak])} reserved. Reserved memory peaked at {instant(samples, highest)}: "
            f"{size(reserved[highest])} of a cap of {size(cap[highest])}."
        )
    end = f" The request failed at {instant(samples, -1)}, where the chart ends." if failed else ""
    return live + most + end


def chart(samples: Samples, width: int) -> Iterator[str]:
    """Draw reserved and live bytes over time as rows of characters with a scale; each column shows its maximum."""
    top = max(1, *samples.figures["reserved"])
    labels = {row: format_size(top * (row + 1) // ROWS) for row in (ROWS - 1, ROWS // 2 - 1)}
    margin = max(map(len, labels.values()))
    columns = max(LEAST_COLUMNS, width - margin - 2)
    live, reserved = (squeeze(samples, name, columns) for name in ("live", "reserved"))
    for row in reversed(range(ROWS)):
        marks = "".join(
            mark(one * ROWS / top - row, two * ROWS / top - row) for one, two in zip(live, reserved, strict=True)
        )
        yield f"{labels.get(row, ''):>{margin}} {'┤' if row in labels else '│'}{marks}".rstrip()
    yield f"{'0':>{margin}} └{'─' * columns}"
    first, last = instant(samples, 0), instant(samples, -1)
    yield f"{'':{margin}}  {first}{last:>{max(1, columns - len(first))}}"
    yield from peak_marks(samples, margin + 2, columns)


def peak_marks(samples: Samples, margin: int, columns: int) -> Iterator[str]:
    label = f"peak, {format_size(samples.figures['live'][samples.peak])} live at {instant(samples, samples.peak)}"
    column = column_of(samples, samples.peak, columns)
    fits = column + len(label) + 2 <= columns  # to the right of its mark
    yield " " * (margin + column) + f"▲ {label}" if fits else f"{label} ▲".rjust(margin + column + 1)
    yield f"{'':{margin}}{LIVE[-1]} live  {RESERVED} reserved"


def mark(live: float, reserved: float) -> str:
    """The character for a cell, given how much of it is live and reserved: none up to 0, all from 1 on."""
    if live * 8 >= 0.5:
        return LIVE[min(7, round(live * 8) - 1)]
    return RESERVED if reserved >= 0.5 else " "


def column_of(samples: Samples, index: int, columns: int) -> int:
    begin, end = samples.at[0], samples.at[-1]
    return min(columns - 1, int((samples.at[index] - begin) * columns / (end - begin))) if end > begin else 0


def squeeze(samples: Samples, name: str, columns: int) -> list[int]:
    """The maximum of a figure in each column."""
    places = (column_of(samples, index, columns) for index in range(len(samples.at)))
    return most_of(zip(places, samples.figures[name], strict=True), columns)


def most_of(placed: Iterable[tuple[int, int]], columns: int) -> list[int]:
    """The maximum in each column, from (column, value) pairs in order; empty columns repeat the last value before."""
    found: list[int | None] = [None] * columns
    last = [0] * columns
    for column, value in placed:
        found[column] = max(value, found[column] or 0)
        last[column] = value
    result: list[int] = []
    before = next((most for most in found if most is not None), 0)
    for most, after in zip(found, last, strict=True):
        result.append(before if most is None else most)
        before = before if most is None else after
    return result
