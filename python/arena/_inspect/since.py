"""What was allocated between two snapshots and still lives."""

from __future__ import annotations

from dataclasses import dataclass

from .._util.shown import Shown
from .._util.sizes import format_size
from .._words.format import counted
from .holders import Holder, by_line, holders
from .snapshot import Piece

__all__ = ["Since"]

MOST = 20


@dataclass(frozen=True, repr=False)
class Since(Shown):
    """Allocations that were made between two snapshots and still live. Printed, it is a table by line."""

    pieces: list[Piece]
    """By address."""

    @property
    def bytes(self) -> int:
        """Their sum."""
        return sum(piece.size for piece in self.pieces)

    @property
    def lines(self) -> list[Holder]:
        """By the line that allocated them, most bytes first; one entry without a name if lines were not traced."""
        traced, untraced = by_line(self.pieces), [piece for piece in self.pieces if not piece.lines]
        return traced + holders(("", piece) for piece in untraced)

    def __str__(self) -> str:
        if not self.pieces:
            return "nothing was allocated in between that still lives"
        was, live = ("was", "lives") if len(self.pieces) == 1 else ("were", "live")
        blocks = f"{counted(len(self.pieces), 'block')}, {format_size(self.bytes)}"
        rows = [f"{blocks}, {was} allocated in between and still {live}"]
        for holder in self.lines[:MOST]:
            name = holder.name or "lines unknown: arena.trace_lines(True) before they are allocated"
            rows.append(f"  {format_size(holder.bytes):>10}  {holder.blocks:>7,}  {name}")
        rest = self.lines[MOST:]
        if rest:
            rows.append(f"  and {counted(len(rest), 'more line')}, {format_size(sum(holder.bytes for holder in rest))}")
        return "\n".join(rows)
