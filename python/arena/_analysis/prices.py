"""Writes price files, and selects the price table for a replay. The simulated driver reads the files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .. import sim
from .._util.next_step import exact_size
from ..errors import UsageError

__all__ = ["Prices", "Row", "Spread", "text_of", "using"]

Prices = str | os.PathLike[str]
"""A price table: the name of a built-in one, or the path of a file."""

TITLE = "arena-prices 1"
COLUMNS = ("call", "size", "idle", "p25", "p75", "rounds", "load", "p25", "p75", "rounds", "waited")
VIRTUAL = ("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease")
PLAIN = ("cuMemAlloc",)


@dataclass(frozen=True)
class Spread:
    """Several measurements of one call, in microseconds."""

    median: float
    low: float
    """The 25th percentile."""
    high: float
    """The 75th percentile."""
    rounds: int


@dataclass(frozen=True)
class Row:
    """The cost of a call for memory of one size."""

    call: str
    size: int
    """Bytes; 0 if the cost does not depend on a size."""
    idle: Spread
    load: Spread | None
    """The cost while another stream is busy; ``None`` if it could not be kept busy."""
    waited: int
    """The number of those rounds in which the call waited for the queued work."""


def text_of(facts: dict[str, str], rows: Iterable[Row]) -> str:
    """The text of a price file."""
    lines = [TITLE, "# Written by arena measure. Times are microseconds; replays use the column idle: docs/prices.md"]
    lines += [f"{key}: {_printable(value)}" for key, value in facts.items()]
    cells = [("# call", *COLUMNS[1:]), *(_cells(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(COLUMNS))]
    lines += ["", *(_aligned(row, widths) for row in cells)]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    size = exact_size(row.size) if row.size else "-"
    load = (*_times(row.load), str(row.waited)) if row.load else ("-",) * 5
    return (row.call, size, *_times(row.idle), *load)


def _times(spread: Spread) -> tuple[str, ...]:
    return (f"{spread.median:.3f}", f"{spread.low:.3f}", f"{spread.high:.3f}", str(spread.rounds))


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
    return "  ".join([row[0].ljust(widths[0]), *rest])


def _printable(text: str) -> str:
    """Replace everything that could break a line: a driver may give a device any name."""
    return "".join(c if c.isprintable() else " " for c in text).strip()


@contextlib.contextmanager
def using(prices: Prices | None, *, vmm: bool) -> Iterator[sim.PriceTable]:
    """Use a price table for replays on a simulated device; by default the one already set.

    A file without prices for the calls that a replay makes is refused: they would seem to cost nothing.
    """
    with sim.temporarily(prices=prices) if prices is not None else contextlib.nullcontext():
        table = sim.prices()
        missing = [call for call in (VIRTUAL if vmm else PLAIN) if call not in table.calls]
        if missing and table.calls:  # the table "free" is empty on purpose
            kind = "virtual memory" if vmm else "plain allocations"
            hint = "; use --plain, or vmm=False" if vmm and all(call in table.calls for call in PLAIN) else ""
            raise UsageError(f"{table.name} has no price for {', '.join(missing)}, which {kind} need{hint}")
        yield table
