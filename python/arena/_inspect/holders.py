"""Largest holders of live memory, by line, scope, stream and age; and source lines as text."""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .cells import cell_of, is_cell
from .snapshot import Line, Piece

__all__ = ["Holder", "StreamUse", "by_age", "by_framework", "by_line", "by_stream", "holders", "line_text"]

AGES = ((1.0, "under 1 s"), (10.0, "1 s to 10 s"), (60.0, "10 s to 1 min"), (600.0, "1 min to 10 min"))
OLDEST = "over 10 min"
NO_FRAMEWORK = "no framework"


@dataclass(frozen=True)
class Holder:
    """The memory that one line, scope or age group holds."""

    name: str
    bytes: int
    blocks: int


@dataclass(frozen=True)
class StreamUse:
    """The live memory of one stream."""

    stream: int
    bytes: int
    blocks: int


def holders(named: Iterable[tuple[str, Piece]]) -> list[Holder]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, piece in named:
        entry = sums[name]
        entry[0] += piece.size
        entry[1] += 1
    found = [Holder(name, size, blocks) for name, (size, blocks) in sums.items()]
    return sorted(found, key=lambda holder: (-holder.bytes, holder.name))


def by_line(live: list[Piece]) -> list[Holder]:
    """Group by line. Files with the same name are shown with their full path."""
    texts = {lines: line_text(lines) for lines in {piece.lines for piece in live} if lines}
    counts = Counter(texts.values())
    names = {lines: text if counts[text] == 1 else line_text(lines, whole=True) for lines, text in texts.items()}
    return holders((names[piece.lines], piece) for piece in live if piece.lines)


def by_stream(live: list[Piece]) -> list[StreamUse]:
    found = holders((str(piece.stream), piece) for piece in live)
    return [StreamUse(int(holder.name), holder.bytes, holder.blocks) for holder in found]


def by_framework(live: list[Piece]) -> list[Holder]:
    return holders((piece.framework or NO_FRAMEWORK, piece) for piece in live)


def by_age(live: list[Piece]) -> list[Holder]:
    limits = [limit for limit, _ in AGES]
    names = [*(name for _, name in AGES), OLDEST]
    found = holders((names[bisect.bisect_right(limits, piece.age)], piece) for piece in live if piece.age is not None)
    return sorted(found, key=lambda holder: names.index(holder.name))


def line_text(lines: Sequence[Line], *, whole: bool = False) -> str:
    """The lines that allocated a block, innermost first, as one line of text: ``train.py:88 in step``.

    The top level of a notebook cell is only the cell: ``In [2]:3``.
    """
    return " < ".join(one_line(line, whole=whole) for line in lines)


def one_line(line: Line, *, whole: bool) -> str:
    file = cell_of(line.file) or line.file
    place = f"{file if whole else Path(file).name}:{line.line}"
    is_top_level = line.function.startswith(("<module>", "<cell line:"))
    return place if is_top_level and is_cell(file) else f"{place} in {line.function}"
