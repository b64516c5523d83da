"""Values that were never computed and reached the program: which, where, and what they sized.

Runs in the program's own process. What computes values calls :func:`read_here` when the program reads an unknown value,
:func:`size_here` when an unknown value becomes a size, and :func:`note_sized` for each allocation of that size. Notes
are kept by line. Safe from any thread; nothing here raises because of what the program does.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import Any

from .assume import Assumptions, Value
from .source import Place, here, text_at

__all__ = [
    "NONZERO",
    "Collector",
    "answer_here",
    "facts",
    "note_freed",
    "note_sized",
    "note_totals",
    "read_here",
    "reset",
    "size_here",
    "zeros_here",
]

NONZERO = "the number of elements of nonzero()"
MOST_ENTRIES = 1000  # lines: more than any program has, unless it makes up file names
LONGEST = 60  # of a read's expression
NOWHERE = Place("a thread of the framework", 0, "")


@dataclass
class Sized:
    """Allocations whose sizes come from an unknown value, in bytes; ``most``: with the largest value possible."""

    allocations: int = 0
    live: int = 0
    live_most: int = 0
    bytes: int = 0
    most: int = 0
    """The highest of each while the program ran."""
    assumed: int = 0
    possible: int = 0
    """The largest of the values assumed, and of those possible, in elements."""

    def change(self, taken: int, most: int) -> None:
        self.live += taken
        self.live_most += most
        self.bytes, self.most = max(self.bytes, self.live), max(self.most, self.live_most)

    def facts(self) -> dict[str, Any]:
        counts = {"assumed": self.assumed, "most": self.possible}
        return {"allocations": self.allocations, "bytes": self.bytes, "most": self.most, "counts": counts}


@dataclass
class Entry:
    """What happened at one line."""

    line: str
    what: str
    kind: str
    dtype: str
    number: int = 0
    count: int = 0
    bytes: int = 0
    """Of the largest read."""
    assumed: Value = 0
    given: bool = False
    """Whether the user said what to assume here."""
    sized: Sized | None = None
    last: int = 0
    """Its place in the order of all notes: the largest is the latest."""

    def facts(self) -> dict[str, Any]:
        return {
            "line": self.line,
            "what": self.what,
            "count": self.count,
            "kind": self.kind,
            "dtype": self.dtype,
            "bytes": self.bytes,
            "sized": self.sized.facts() if self.sized is not None and self.sized.allocations else None,
            "assumed": self.assumed,
            "given": self.given,
            "last": self.last,
        }


@dataclass
class Collector:
    """The notes of one process."""

    assumptions: Assumptions = field(default_factory=Assumptions.from_environment)
    lock: Any = field(default_factory=threading.RLock)  # a signal handler may end the run while it is held
    entries: dict[tuple[str, int, str, str], Entry] = field(default_factory=dict)
    numbered: list[Entry] = field(default_factory=list)
    notes: int = 0

    def read(self, place: Place, dtype: str, unknown_bytes: int, assumed: Value | None) -> None:
        given = self.assumptions.at(place.file, place.line)
        value = assumed if assumed is not None else 0
        is_given = given is not None and value == given
        with self.lock:
            entry = self.entry(place, text_at(place, LONGEST), "read", dtype)
            if entry is not None:
                entry.bytes = max(entry.bytes, unknown_bytes)
                entry.assumed, entry.given = value, is_given

    def size(self, place: Place, what: str, assumed: int, most: int) -> int:
        given = self.assumptions.at(place.file, place.line)
        with self.lock:
            entry = self.entry(place, what, "size", "int64")
            if entry is None:
                return 0
            entry.sized = entry.sized or Sized()
            entry.sized.assumed = max(entry.sized.assumed, assumed)
            entry.sized.possible = max(entry.sized.possible, most)
            entry.assumed, entry.given = assumed, given is not None
            return entry.number

    def sized(self, number: int, taken: int, most: int, *, freed: bool) -> None:
        """Count an allocation of a size noted before, or that it is free again."""
        with self.lock:
            sized = self.numbered[number - 1].sized if 0 < number <= len(self.numbered) else None
            if sized is None:
                return
            sign = -1 if freed else 1
            sized.allocations += not freed
            sized.change(sign * taken, sign * max(taken, most))

    def total(self, number: int, allocations: int, taken: int, most: int) -> None:
        with self.lock:
            sized = self.numbered[number - 1].sized if 0 < number <= len(self.numbered) else None
            if sized is not None:
                sized.allocations, sized.bytes, sized.most = allocations, taken, max(taken, most)

    def entry(self, place: Place, what: str, kind: str, dtype: str) -> Entry | None:
        """The entry of a line, counted once more; none if there are too many."""
        key = (place.file, place.line, what, dtype)
        entry = self.entries.get(key)
        if entry is None:
            if len(self.entries) >= MOST_ENTRIES:
                return None
            entry = self.entries[key] = Entry(place.name, what, kind, dtype, len(self.numbered) + 1)
            self.numbered.append(entry)
        self.notes += 1
        entry.count += 1
        entry.last = self.notes
        return entry

    def facts(self) -> list[dict[str, Any]]:
        with self.lock:
            return [entry.facts() for entry in self.entries.values()]


_collector: Collector | None = None
_guard = threading.Lock()


def collector() -> Collector:
    global _collector
    with _guard:
        if _collector is None:
            _collector = Collector()
        return _collector


def reset() -> None:
    """Forget all notes, and read the assumptions again."""
    global _collector, _guard
    _collector, _guard = None, threading.Lock()


os.register_at_fork(after_in_child=reset)  # a lock may be held by a thread that the child does not have


def read_here(dtype: str, unknown_bytes: int) -> Value | None:
    """The program reads unknown values of a type; returns what is assumed of them, none if nothing is."""
    return answer_here(dtype, unknown_bytes)[0]


def answer_here(dtype: str, unknown_bytes: int) -> tuple[Value | None, bool]:
    """The same, and whether the user said it: otherwise it stands for any other value."""
    found, place = collector(), here() or NOWHERE
    given = found.assumptions.at(place.file, place.line)
    value = given
    if given is None and not found.assumptions.keeps(place.file, place.line):
        value = found.assumptions.read(dtype) or None
    found.read(place, dtype, unknown_bytes, value)
    return value, given is not None


def zeros_here(unknown_bytes: int) -> None:
    """The program reads unknown bytes of no known type: they are zero, whatever is assumed."""
    collector().read(here() or NOWHERE, "", unknown_bytes, None)


def size_here(what: str, most: int) -> tuple[int, int]:
    """An unknown value, ``most`` at most, becomes a size in elements: returns an id for its allocations, and the size.

    The id is the same for each of the same line; 0 if there are too many. ``what`` is in words: :data:`NONZERO`.
    """
    found, place = collector(), here() or NOWHERE
    given = found.assumptions.at(place.file, place.line)
    count = found.assumptions.count(most) if given is None else max(0, min(int(given), most))
    return found.size(place, what, count, most), count


def note_sized(number: int, bytes_as_allocated: int, bytes_at_most: int) -> None:
    """An allocation of the size with that id."""
    collector().sized(number, bytes_as_allocated, bytes_at_most, freed=False)


def note_freed(number: int, bytes_as_allocated: int, bytes_at_most: int) -> None:
    """An allocation that :func:`note_sized` noted is free again. Without this it counts as held until the end."""
    collector().sized(number, bytes_as_allocated, bytes_at_most, freed=True)


def note_totals(number: int, allocations: int, bytes_live: int, bytes_at_most: int) -> None:
    """All allocations of the size with that id, counted by somebody else: how many, and what they held at a time."""
    collector().total(number, allocations, bytes_live, bytes_at_most)


def facts() -> list[dict[str, Any]]:
    """All notes, in the order in which the lines first appeared."""
    return [] if _collector is None else _collector.facts()
