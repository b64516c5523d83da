"""Allocations made between two snapshots that are still live."""

from __future__ import annotations

from dataclasses import dataclass

from .._util.shown import Shown
from .._util.sizes import format_size
from .._words.format import counted
from .._words.plain import plain
from .holders import Holder, by_line, holders
from .snapshot import Piece

__all__ = ["Since"]

MOST = 20


@dataclass(frozen=True, repr=False)
class Since(Shown):
    """Allocations made between two snapshots that are still live. Printing it shows a table by line."""

    pieces: list[Piece]
    """The allocations, by address."""

    @property
    def bytes(self) -> int:
        """Their total size."""
        return sum(piece.size for piece in self.pieces)

    @property
    def lines(self) -> list[Holder]:
        """Bytes by allocating line, largest first. Allocations without a traced line share one unnamed entry."""
        traced, untraced = by_line(self.pieces), [piece for piece in self.pieces if not piece.lines]
        return traced + holders(("", piece) for piece in untraced)

    def __str__(self) -> str:
        if not self.pieces:
            return "nothing allocated in between is still live"
        verb = "is" if len(self.pieces) == 1 else "are"
        blocks = f"{counted(len(self.pieces), 'block')} ({format_size(self.bytes)})"
        rows = [f"{blocks} allocated in between {verb} still live"]
        for holder in self.lines[:MOST]:
            name = holder.name or "unknown lines: call arena.trace_lines(True) before they are allocated"
            rows.append(f"  {format_size(holder.bytes):>10}  {holder.blocks:>7,}  {name}")
        rest = self.lines[MOST:]
        if rest:
            rows.append(f"  and {counted(len(rest), 'more line')}, {format_size(sum(holder.bytes for holder in rest))}")
        return "\n".join(map(plain, rows))
