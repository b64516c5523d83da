"""What is said, and kept, when a request fails: who holds the memory, and the whole report in a file."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ._report import Report
from ._report._build import by_line
from ._report._build import holders as holders_of
from ._sizes import format_size
from ._snapshot import Snapshot
from .errors import ArenaError, OutOfMemoryError

if TYPE_CHECKING:
    from ._arena import Arena

__all__ = ["tell"]

MOST_HOLDERS = 5
MOST_SAVED = 10  # reports in one process: a program may catch the error and go on for days
_numbers = list(range(MOST_SAVED, 0, -1))  # of those that are still to come: only one thread can pop each

keep: Callable[[Report], list[str]] | None = None
"""What ``arena run`` does with the report of a request that failed; it returns lines for the error."""


def tell(pool: Arena, error: OutOfMemoryError) -> OutOfMemoryError:
    """The same error, with who holds the most in it; saves the report if ``ARENA_OOM_DIR`` says where."""
    try:
        snapshot = pool.snapshot()
        holders = who_holds(snapshot)
        folder = os.environ.get("ARENA_OOM_DIR")
        if folder or keep:
            report = pool.report(verdict=error.verdict, request=error.requested)
            holders += keep(report) if keep else []
            holders += save(report, snapshot, Path(folder)) if folder else []
        return error._but(holders=tuple(holders))
    except Exception:  # whatever it is, such as the recursion limit: the error itself matters more
        return error


def of_size(error: OutOfMemoryError, size: int) -> OutOfMemoryError:
    """The error of a request that was for more than the core can be told of."""
    if error.requested == size:
        return error
    text = error.args[0]
    return error._but(text=f"out of memory: {size:,} bytes{text[text.index(' asked') :]}", requested=size)


def who_holds(snapshot: Snapshot) -> list[str]:
    """By line if lines are traced, otherwise by size: what one would look at first."""
    live = snapshot.live
    lines = by_line(live)
    if lines:
        found = [(holder, f"blocks: {holder.name}") for holder in lines[:MOST_HOLDERS]]
    else:
        sizes = holders_of((str(piece.size.bit_length() - 1), piece) for piece in live)
        found = [
            (holder, f"blocks of {format_size(1 << int(holder.name))} and more") for holder in sizes[:MOST_HOLDERS]
        ]
    if not found:
        return []
    head = "Held most by:" if lines else "Held most by (by line with ARENA_LINES=1):"
    return [head, *(f"{format_size(holder.bytes):>12}  in {holder.blocks:,} {words}" for holder, words in found)]


def save(report: Report, snapshot: Snapshot, folder: Path) -> list[str]:
    """Never in the way of the error: what cannot be written is a warning."""
    try:
        number = _numbers.pop()
    except IndexError:
        return []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"oom-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{number}"  # numbers of processes come back
        page = report.save(folder / f"{stem}.html")
        report.save(folder / f"{stem}.json")
        snapshot.save(folder / f"{stem}.snapshot.json")
    except (OSError, ArenaError) as problem:
        warnings.warn(f"ARENA_OOM_DIR={str(folder)!r}: no report was written: {problem}", RuntimeWarning, stacklevel=2)
        return []
    return [f"The whole report: {page}"]
