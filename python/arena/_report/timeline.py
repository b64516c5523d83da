"""The account over time: the part of a report that is drawn from samples, in words and as rows of marks."""

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

BUCKETS = 650  # of which three samples each are kept
ROWS = 8
LEAST_COLUMNS = 8
LIVE, RESERVED = "▁▂▃▄▅▆▇█", "░"


class Account(Protocol):
    """Stats, as far as they are drawn."""

    @property
    def live(self) -> int: ...
    @property
    def reserved(self) -> int: ...


Point = tuple[float, Account]


def thin(points: Sequence[Point], buckets: int = BUCKETS) -> list[Point]:
    """Of many samples those that matter: of each bucket where the most and the least was live, and the most reserved.

    The last is kept too. A replay does the same before it takes them.
    """
    live, reserved = ([getattr(account, name) for _, account in points] for name in ("live", "reserved"))
    return [points[index] for index in thin_indices(live, reserved, buckets)]


def thin_indices(live: Sequence[int], reserved: Sequence[int], buckets: int) -> list[int]:
    """The numbers of those samples."""
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
    """The part of a report, if there is anything to draw. ``unit`` is ``s`` or ``events``, counted from the first."""
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
    """A time for people: ``12.5 µs``, ``3.2 s``, ``2 h 5 min``."""
    if value >= 3600:
        return f"{value // 3600:.0f} h {value % 3600 // 60:.0f} min"
    if value >= 60:
        return f"{value // 60:.0f} min {value % 60:.0f} s"
    for unit, scale in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if value * scale >= 1 or unit == "µs":
            return f"{value * scale:.3g} {unit}"
    raise AssertionError


def words(samples: Samples, failed: bool = False) -> str:
    """What the picture shows."""
    reserved, cap, size = samples.figures["reserved"], samples.figures["cap"], format_size
    highest, peak = reserved.index(max(reserved)), samples.peak
    live = f"The most was live at {instant(samples, peak)}: {size(samples.figures['live'][peak])}"
    if reserved[peak] == reserved[highest]:
        most = f", when the most was reserved too: {size(reserved[peak])} of a cap of {size(cap[peak])}."
    else:
        most = (
            f", with {size(reserved[peak])} reserved. The most was reserved at {instant(samples, highest)}: "
            f"{size(reserved[highest])} of a cap of {size(cap[highest])}."
        )
    end = f" The request failed at {instant(samples, -1)}, where the picture ends." if failed else ""
    return live + most + end


def chart(samples: Samples, width: int) -> Iterator[str]:
    """Rows of marks, reserved and live over time, with their scale; each column shows the most of its time."""
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
    said = f"peak, {format_size(samples.figures['live'][samples.peak])} live at {instant(samples, samples.peak)}"
    column = column_of(samples, samples.peak, columns)
    fits = column + len(said) + 2 <= columns  # to the right of its mark
    yield " " * (margin + column) + f"▲ {said}" if fits else f"{said} ▲".rjust(margin + column + 1)
    yield f"{'':{margin}}{LIVE[-1]} live  {RESERVED} reserved"


def mark(live: float, reserved: float) -> str:
    """One character, of which so much is live and so much reserved: below 0 none, from 1 on all."""
    if live * 8 >= 0.5:
        return LIVE[min(7, round(live * 8) - 1)]
    return RESERVED if reserved >= 0.5 else " "


def column_of(samples: Samples, index: int, columns: int) -> int:
    begin, end = samples.at[0], samples.at[-1]
    return min(columns - 1, int((samples.at[index] - begin) * columns / (end - begin))) if end > begin else 0


def squeeze(samples: Samples, name: str, columns: int) -> list[int]:
    """The most in each column of what was sampled."""
    places = (column_of(samples, index, columns) for index in range(len(samples.at)))
    return most_of(zip(places, samples.figures[name], strict=True), columns)


def most_of(placed: Iterable[tuple[int, int]], columns: int) -> list[int]:
    """The most in each column, of values with their columns, in order; where there is none, what was before."""
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
