"""What an OutOfMemoryError says beyond the figures of the core: the largest holders, and where the report was saved.

All of it comes from one snapshot, which the core took at the moment of the verdict, under its lock. So the error, the
page and the files cannot disagree.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import _core
from .._inspect.holders import Holder, line_text
from .._inspect.lines import caller
from .._inspect.snapshot import Line, Snapshot, no_collection
from .._report import Report
from .._report.build import build
from .._report.failure import held_in_words, who_held
from .._words.plain import plain
from ..errors import ArenaError, OutOfMemoryError

if TYPE_CHECKING:
    from .arena import Arena

__all__ = ["build_error", "keep_reports", "name_place", "snapshot_of"]

MOST_SAVED = 10  # reports per process: a program may catch the error and go on for days
_numbers = list(range(MOST_SAVED, 0, -1))  # numbers that are still free: only one thread can pop each

_keep: Callable[[Report], list[str]] | None = None


def keep_reports(function: Callable[[Report], list[str]] | None) -> None:
    """Call a function with the report of each request that fails from now on. It returns lines for the error."""
    global _keep
    _keep = function


_place: Callable[[], str] | None = None


def name_place(function: Callable[[], str] | None) -> None:
    """Add a line to each error from now on: where this thread runs, if the function knows it (not empty)."""
    global _place
    _place = function


def build_error(pool: Arena, failure: _core.Failure, moving: str) -> OutOfMemoryError:
    """Build the error of a failed request, with its largest holders; save the report if ``ARENA_OOM_DIR`` is set."""
    snapshot, line = None, ""
    held: Sequence[Holder] = ()
    try:
        snapshot = snapshot_of(pool, failure, moving)
        if snapshot is not None:
            held, line = who_held(snapshot, failure.in_scope), requesting_line()
        holders = (*_here(), *held_in_words(held, failure.scope))
    except Exception:  # whatever it is, such as the recursion limit: the error itself matters more
        return failure.error(moving=moving)
    error = failure.error(moving=moving, line=line, holders=holders)
    try:
        if snapshot is not None:
            _save_report(pool, error, snapshot, held)
    except Exception:  # as above
        return error
    return error


def _here() -> list[str]:
    name = _place  # once: another thread may change it
    place = name() if name is not None else ""
    return [place] if place else []


def _save_report(pool: Arena, error: OutOfMemoryError, snapshot: Snapshot, held: Sequence[Holder]) -> None:
    """Save the report and hand it to the function of :func:`keep_reports`; the error says where it is."""
    folder = os.environ.get("ARENA_OOM_DIR")
    keep = _keep  # once: another thread may change it
    if not folder and not keep:
        return
    timeline = pool._watched.timeline(snapshot) if pool._watched is not None else None
    report = build(snapshot, **pool._device_facts, failure=error, held=held, timeline=timeline)
    kept = keep(report) if keep else []
    error._add_holders([*kept, *(save(report, snapshot, Path(folder)) if folder else [])])


def snapshot_of(pool: Arena, failure: _core.Failure, moving: str) -> Snapshot | None:
    """The state of the arena when the request failed; None if the core took no snapshot."""
    with no_collection():
        taken = failure.snapshot()
        if taken is None:
            return None
        return Snapshot._of(pool._device, pool._number, taken, may_move=failure.could_move, moving=moving)


def requesting_line() -> str:
    """The line of the program that this thread is in."""
    found = caller()
    return line_text([Line(*found)]) if found else ""


def save(report: Report, snapshot: Snapshot, folder: Path) -> list[str]:
    """Write the files, and return a line for the error. What cannot be written is a warning: the error matters more."""
    try:
        number = _numbers.pop()
    except IndexError:
        return []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"oom-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{number}"  # process ids are reused
        page = report.save(folder / f"{stem}.html")
        report.save(folder / f"{stem}.json")
        snapshot.save(folder / f"{stem}.snapshot.json")
    except (OSError, ArenaError) as problem:
        text = plain(f"ARENA_OOM_DIR={str(folder)!r}: no report was written: {problem}")
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return []
    return [f"Full report: {page}"]
