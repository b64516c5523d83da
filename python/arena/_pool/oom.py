"""What is said, and kept, when a request fails: who holds the memory, and the whole report in a file.

All of it is made from one snapshot, which the core took at the moment of the verdict, with the lock in hand: the error,
the page and the files cannot disagree.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .. import _core
from .._inspect.holders import line_text
from .._inspect.lines import caller
from .._inspect.snapshot import Line, Snapshot, no_collection
from .._report import Report
from .._report.build import build
from .._report.failure import held_in_words, who_held
from ..errors import ArenaError, OutOfMemoryError

if TYPE_CHECKING:
    from .arena import Arena

__all__ = ["keep_reports", "of_size", "snapshot_of", "tell"]

MOST_SAVED = 10  # reports in one process: a program may catch the error and go on for days
_numbers = list(range(MOST_SAVED, 0, -1))  # of those that are still to come: only one thread can pop each

_keep: Callable[[Report], list[str]] | None = None


def keep_reports(function: Callable[[Report], list[str]] | None) -> None:
    """Call a function with the report of each request that fails from now on. It returns lines for the error."""
    global _keep
    _keep = function


def tell(pool: Arena, error: OutOfMemoryError, failure: _core.Failure | None) -> OutOfMemoryError:
    """The same error, with who holds the most in it; saves the report if ``ARENA_OOM_DIR`` says where."""
    try:
        snapshot = snapshot_of(pool, error, failure)
        if failure is None or snapshot is None:
            return error
        held = who_held(snapshot, failure.in_scope)
        error = error._but(line=asker(), holders=tuple(held_in_words(held, error.scope)))
        folder = os.environ.get("ARENA_OOM_DIR")
        keep = _keep  # once: another thread may change it
        if not folder and not keep:
            return error
        timeline = pool._watched.timeline(snapshot) if pool._watched is not None else None
        report = build(snapshot, **pool._device_facts, failure=error, held=held, timeline=timeline)
        more = [*(keep(report) if keep else []), *(save(report, snapshot, Path(folder)) if folder else [])]
        return error._but(holders=(*error.holders, *more))
    except Exception:  # whatever it is, such as the recursion limit: the error itself matters more
        return error


def snapshot_of(pool: Arena, error: OutOfMemoryError, failure: _core.Failure | None) -> Snapshot | None:
    """What there was when the request failed; none if the core took no snapshot."""
    with no_collection():
        core = failure.snapshot() if failure is not None else None
        if failure is None or core is None:
            return None
        may_move, number = failure.could_move, pool._number
        return Snapshot._of(pool._device, number, core, may_move=may_move, moving=error.moving)


def asker() -> str:
    """The line of the program that this thread is in."""
    found = caller()
    return line_text([Line(*found)]) if found else ""


def of_size(error: OutOfMemoryError, size: int) -> OutOfMemoryError:
    """The error of a request that was for more than the core can be told of."""
    if error.requested == size:
        return error
    text = error.args[0]
    return error._but(text=f"out of memory: {size:,} bytes{text[text.index(' requested') :]}", requested=size)


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
