"""What the user assumes of values that a dry run does not compute.

``ARENA_ASSUME`` holds one assumption per line, as ``--assume`` takes them:

- ``nonzero=all``, ``half``, ``none``: how many elements pass, where their number is unknown. Default: all.
- ``reads=1``: unknown values read as 1 instead of 0. ``arena dryrun`` sets it for a second run.
- ``bools=0``: except bools. ``arena dryrun`` sets it for a third.
- ``keep=train.py:31``: what is read at that line stays as in the first run: a check, which would end the program.
- ``boxes.py:258=1000``: the value that the program gets at that line.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from .._util.arguments import is_number
from ..errors import UsageError

__all__ = ["FORMS", "NAME", "RANGE", "Assumptions", "Share", "Value", "place_of"]

NAME = "ARENA_ASSUME"
RANGE = "nonzero=range"  # of the command line alone: it runs the program with both ends

Value = float | int
Share = Literal["all", "half", "none"]
SHARES: dict[str, Share] = {"all": "all", "half": "half", "none": "none"}
FORMS = "write nonzero=all, half, none or range, or the value at a line: --assume boxes.py:258=1000"


@dataclass(frozen=True)
class Assumptions:
    """All of them, for one process."""

    nonzero: Share = "all"
    reads: int = 0
    """What unknown values read as, where nothing is said of their line."""
    bools: int | None = None
    """What bools read as, if that is not what other values do."""
    values: dict[tuple[str, int], Value] = field(default_factory=dict)
    """By file, as the user wrote it, and line."""
    kept: tuple[tuple[str, int], ...] = ()
    """Files and lines where unknown values read as in the first run, whatever ``reads`` says."""

    @classmethod
    def parse(cls, text: str) -> Assumptions:
        """Read the variable's value.

        >>> found = Assumptions.parse("nonzero=half\\nboxes.py:258=1000")
        >>> found.nonzero, found.at("/home/me/boxes.py", 258), found.at("/home/me/boxes.py", 259)
        ('half', 1000, None)
        """
        return cls.of(text.splitlines())

    @classmethod
    def of(cls, items: Iterable[str]) -> Assumptions:
        """Read assumptions. The last one wins."""
        nonzero: Share = "all"
        reads = 0
        bools: int | None = None
        values: dict[tuple[str, int], Value] = {}
        kept: list[tuple[str, int]] = []
        for item in items:
            name, equals, value = item.strip().rpartition("=")
            if name == "nonzero" and value in SHARES:
                nonzero = SHARES[value]
            elif name == "reads" and value in ("0", "1"):
                reads = int(value)
            elif name == "bools" and value in ("0", "1"):
                bools = int(value)
            elif name == "keep" and (place := place_of(value)) is not None:
                kept.append(place)
            elif equals and (place := place_of(name)) is not None:
                values[place] = value_of(value, item)
            elif item.strip():
                raise UsageError(f"--assume {item} is not accepted; {FORMS}")
        return cls(nonzero, reads, bools, values, tuple(kept))

    @classmethod
    def from_environment(cls) -> Assumptions:
        return cls.parse(os.environ.get(NAME, ""))

    def at(self, file: str, line: int) -> Value | None:
        """The value that the program gets at a line; none if nothing was said of it."""
        found = (value for place, value in self.values.items() if is_at(place, file, line))
        return next(found, None)

    def keeps(self, file: str, line: int) -> bool:
        return any(is_at(place, file, line) for place in self.kept)

    def read(self, dtype: str) -> int:
        """What an unknown value of a type reads as, where nothing is said of the line."""
        return self.bools if dtype == "bool" and self.bools is not None else self.reads

    def count(self, most: int) -> int:
        """How many of so many elements pass, where nothing is said of the line."""
        return {"all": most, "half": most // 2, "none": 0}[self.nonzero]

    def text(self) -> str:
        """The variable's value; empty if there is nothing to say.

        >>> Assumptions(nonzero="none", reads=1, values={("train.py", 31): 2.5}).text()
        'nonzero=none\\nreads=1\\ntrain.py:31=2.5'
        """
        items = [f"nonzero={self.nonzero}"] if self.nonzero != "all" else []
        items += [f"reads={self.reads}"] if self.reads else []
        items += [f"bools={self.bools}"] if self.bools is not None else []
        items += [f"{file}:{line}={value!r}" for (file, line), value in self.values.items()]
        items += [f"keep={file}:{line}" for file, line in self.kept]
        return "\n".join(items)


def is_at(place: tuple[str, int], file: str, line: int) -> bool:
    """Whether a place is that line of a file.

    A file is meant if its path ends with what the user wrote: ``models/rpn.py`` is ``/home/me/models/rpn.py``.
    """
    named, number = place
    wanted = os.path.normpath(named).split(os.sep)
    return number == line and (file == named or file.split(os.sep)[-len(wanted) :] == wanted)


def place_of(text: str) -> tuple[str, int] | None:
    file, colon, line = text.rpartition(":")
    if not colon or not file.strip() or not is_number(line) or int(line) < 1:
        return None
    return file.strip(), int(line)


def value_of(text: str, item: str) -> Value:
    words = {"true": 1, "false": 0}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or len(text) > 40:
        raise UsageError(f"--assume {item} is not accepted: {text} is not a finite number, true or false")
    try:
        return int(text)
    except ValueError:
        return value
