"""What must hold for an arena, from addresses and sizes alone: nothing here asks the arena how it works.

The promise, in granules: a request passes if the granules touched by live blocks, plus those that it adds at the best
place, are within the limit; otherwise it fails. On plain segments: if it fits into a gap of a segment, or if the
segments with live blocks leave room for one more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

ALIGNMENT = 512


def up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def rounded(size: int) -> int:
    return max(ALIGNMENT, up(size, ALIGNMENT))


@dataclass
class Room:
    """What the program knows about a scope: its budget, what is live in it, and its peak."""

    budget: int | None
    live: int = 0
    peak: int = 0
    blocks: int = 0

    def add(self, size: int) -> None:
        self.live += size
        self.blocks += 1
        self.peak = max(self.peak, self.live)

    def remove(self, size: int) -> None:
        self.live -= size
        self.blocks -= 1

    def has(self, size: int) -> bool:
        return self.budget is None or self.live + size <= self.budget


@dataclass(eq=False)
class Held:
    """A block that the program holds: its address, the byte it is filled with, and its users."""

    ptr: int
    nbytes: int
    stream: int | None  # None: it was destroyed
    value: int
    rooms: tuple[Room, ...] = ()
    users: set[int] = field(default_factory=set)
    pins: int = 0

    @property
    def size(self) -> int:
        return rounded(self.nbytes)

    @property
    def end(self) -> int:
        return self.ptr + self.size


class Model:
    def __init__(self, granule: int) -> None:
        self.granule = granule
        self.blocks: list[Held] = []
        self.peak_requested = self.peak_live = 0

    @property
    def requested(self) -> int:
        return sum(block.nbytes for block in self.blocks)

    @property
    def live(self) -> int:
        return sum(block.size for block in self.blocks)

    def add(self, block: Held) -> None:
        assert block.ptr % ALIGNMENT == 0, hex(block.ptr)
        for other in self.blocks:
            assert block.end <= other.ptr or other.end <= block.ptr, (block, other)
        self.blocks.append(block)
        for room in block.rooms:
            room.add(block.size)
        self.peak_requested = max(self.peak_requested, self.requested)
        self.peak_live = max(self.peak_live, self.live)

    def remove(self, block: Held) -> None:
        self.blocks.remove(block)
        for room in block.rooms:
            room.remove(block.size)

    def granules(self, begin: int, end: int) -> range:
        return range(begin // self.granule, up(end, self.granule) // self.granule)

    def touched(self) -> set[int]:
        return {g for block in self.blocks for g in self.granules(block.ptr, block.end)}

    def gaps(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The free pieces between two addresses that no block crosses."""
        found, at = [], begin
        for block in sorted(self.blocks, key=lambda block: block.ptr):
            if block.ptr < begin or block.ptr >= end:
                continue
            if at < block.ptr:
                found.append((at, block.ptr))
            at = block.end
        return [*found, (at, end)] if at < end else found

    def fewest_new(self, size: int, base: int) -> int:
        """How many granules a request adds to the touched ones at the best place, from an address upwards."""
        touched = self.touched()
        far = max((block.end for block in self.blocks), default=base) + 2 * up(size, self.granule) + self.granule
        places = [p for a, b in self.gaps(base, far) if b - a >= size for p in (a, b - size)]
        return min(sum(g not in touched for g in self.granules(place, place + size)) for place in places)

    def untouched_beside_pins(self, handles: Iterable[tuple[int | None, int]]) -> int:
        """Granules of handles that a pinned block keeps in place."""
        touched, count = self.touched(), 0
        for address, size in handles:
            if address is None:
                continue
            if any(block.pins and block.ptr < address + size and address < block.end for block in self.blocks):
                count += sum(g not in touched for g in self.granules(address, address + size))
        return count

    def fits_plain(self, size: int, segments: Iterable[tuple[int, int]], limit: int) -> bool:
        """Whether plain segments hold a request, with at most `limit` bytes of them."""
        in_use = 0
        for address, length in segments:
            gaps = self.gaps(address, address + length)
            if any(b - a >= size for a, b in gaps):
                return True
            if gaps != [(address, address + length)]:
                in_use += length
        return in_use + up(size, self.granule) <= limit
