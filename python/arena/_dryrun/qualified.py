"""What unknown values mean for a verdict, and how they are described.

The facts are those of :mod:`unknown`, from the program's process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._util.sizes import format_size
from .._words.format import counted

__all__ = [
    "Unknown",
    "control_reads",
    "is_flipped",
    "open_reads",
    "span_of",
    "suspect",
    "unknown_in_words",
    "unknown_of",
]

MOST_SHOWN = 5
CHECK = "a check: with its other value the program ends there"
SCALAR = 8  # bytes: a read of no more, whose type is not known, may be an integer


@dataclass(frozen=True)
class Unknown:
    """A value that was never computed and reached the program, at one line."""

    line: str
    what: str
    kind: str
    """``read`` by the program, or it became a ``size``."""
    dtype: str
    count: int
    bytes: int
    sized: dict[str, Any] | None
    assumed: float
    given: bool
    """Whether the user said what to assume."""
    last: int
    """The larger, the later in the run."""

    @property
    def place(self) -> str:
        """``train.py:31``, as ``--assume`` takes it."""
        return self.line.partition(" in ")[0]

    @property
    def is_control(self) -> bool:
        """Whether programs usually decide by such values: integers and bools, and single numbers of unknown type."""
        if self.kind != "read" or self.given:
            return False
        return self.dtype.startswith(("int", "uint", "bool")) or (not self.dtype and self.bytes <= SCALAR)

    @property
    def name(self) -> str:
        what = f"`{self.what}`" if self.kind == "read" and self.what else self.what or "a value"
        return f"{what} {'at' if ':' in self.place else 'in'} {self.place}"


def unknown_of(entries: Sequence[dict[str, Any]]) -> tuple[Unknown, ...]:
    names = Unknown.__dataclass_fields__
    return tuple(Unknown(**{name: entry[name] for name in names}) for entry in entries)


def control_reads(found: Sequence[Unknown]) -> list[Unknown]:
    return [one for one in found if one.is_control]


def open_reads(found: Sequence[Unknown]) -> list[Unknown]:
    """All reads of which the user said nothing, and whose type is known, so that they can have another value."""
    return [one for one in found if one.kind == "read" and not one.given and (one.dtype or one.is_control)]


def span_of(found: Sequence[Unknown]) -> tuple[int, int]:
    """What allocations of unknown sizes took, and could take at most, in bytes. What the user said is known."""
    sized = [one.sized for one in found if one.sized and not one.given]
    return sum(one["bytes"] for one in sized), sum(one["most"] for one in sized)


def is_flipped(found: Sequence[Unknown], other: Sequence[Unknown]) -> bool:
    """Whether another run gave the program 1 wherever this one gave it 0."""
    flipped = {(one.line, one.what) for one in other if one.assumed == 1}
    return all((one.line, one.what) in flipped for one in open_reads(found))


def suspect(found: Sequence[Unknown], error_line: str) -> Unknown | None:
    """The value that may have caused the error at a line: one read there, or else the latest."""
    candidates = [one for one in found if not one.given]
    there = [one for one in candidates if one.line == error_line]
    return max(there or candidates, key=lambda one: one.last, default=None)


def unknown_in_words(
    found: Sequence[Unknown], *, settled: bool, doubted: bool, checks: Sequence[str] = ()
) -> list[str]:
    """Lines about all of them.

    ``settled``: another run has shown that those read do not matter; ``doubted``: that any of them may. ``checks`` are
    lines where a bool with its other value ends the program.
    """
    effect = "what follows may depend on it" if doubted else "no effect on memory seen"
    effect = "no effect on memory, whether 0 or 1" if settled else effect
    lines = []
    if never := [one for one in found if not one.given]:
        shown = [described(one, CHECK if is_check(one, checks) else effect) for one in never[:MOST_SHOWN]]
        more = [f"{len(never) - MOST_SHOWN} more"] if len(never) > MOST_SHOWN else []
        verb = "was" if len(never) == 1 else "were"
        lines.append(
            f"{counted(len(never), 'value')} that {verb} never computed reached the program: {joined(shown + more)}"
        )
    if given := [one for one in found if one.given]:
        lines.append(f"assumed, as you said: {joined([f'{one.assumed:g} for {one.name}' for one in given])}")
    return lines


def is_check(one: Unknown, checks: Sequence[str]) -> bool:
    return one.line in checks and one.dtype == "bool"


def described(one: Unknown, effect: str) -> str:
    if one.sized is not None:
        allocations = counted(one.sized["allocations"], "allocation")
        return f"{one.name}, which sized {allocations}, at most {format_size(one.sized['most'])} together"
    return f"{one.name}, which sized no allocation" if one.kind == "size" else f"{one.name} ({effect})"


def joined(parts: list[str]) -> str:
    return "; ".join(parts) if any("," in part for part in parts[:-1]) else ", ".join(parts)
