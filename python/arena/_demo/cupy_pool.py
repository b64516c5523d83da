"""A model of CuPy's memory pool, written from its source code, to see where a recorded program would fail with it.

- Sizes are rounded up to 512 bytes. Each stream has its own free chunks, which no other stream can use.
- A request gets the smallest free chunk that is large enough (best fit). The rest of that chunk is split off.
- A freed chunk is coalesced with free neighbours that were split from the same piece of device memory.
- If no chunk fits, memory is allocated from the device. If the device is full, entirely free pieces are returned to it,
  and the allocation is retried. (With ``set_limit`` CuPy does not even do that, and fails sooner.)

Among free chunks of the same size CuPy picks an arbitrary one, like Python's sets. This model picks the lowest address,
or a random one. ``benchmarks/cupy_pool.py`` measures how much that matters.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from .._cupy import POOL_UNIT
from .._trace import Event

__all__ = ["CuPyPool", "Death", "play", "smallest_device"]

UNIT = POOL_UNIT


@dataclass(frozen=True)
class Death:
    """The request that failed, and what was free at that moment."""

    event: int
    requested: int
    free: int
    """Bytes of the device that no array uses: in free chunks, or never allocated."""
    largest: int
    """The largest request that would have passed."""


class Chunk:
    __slots__ = ("address", "is_free", "next", "previous", "size", "stream")

    def __init__(self, address: int, size: int, stream: int) -> None:
        self.address, self.size, self.stream = address, size, stream
        self.previous: Chunk | None = None
        self.next: Chunk | None = None
        self.is_free = False

    @property
    def is_whole(self) -> bool:
        return self.previous is None and self.next is None


class FreeChunks:
    """The free chunks of one stream, by size. Addresses may be stale: their chunk was taken or has changed."""

    def __init__(self, chance: random.Random | None) -> None:
        self.chance = chance
        self.sizes: list[int] = []
        self.by_size: dict[int, dict[int, Chunk]] = {}
        self.addresses: dict[int, list[int]] = {}

    def add(self, chunk: Chunk) -> None:
        chunk.is_free = True
        if chunk.size not in self.by_size:
            bisect.insort(self.sizes, chunk.size)
            self.by_size[chunk.size], self.addresses[chunk.size] = {}, []
        self.by_size[chunk.size][chunk.address] = chunk
        heappush(self.addresses[chunk.size], chunk.address)

    def remove(self, chunk: Chunk) -> None:
        chunk.is_free = False
        same = self.by_size[chunk.size]
        del same[chunk.address]
        if not same:
            del self.by_size[chunk.size], self.addresses[chunk.size]
            del self.sizes[bisect.bisect_left(self.sizes, chunk.size)]

    def take(self, size: int) -> Chunk | None:
        index = bisect.bisect_left(self.sizes, size)
        if index == len(self.sizes):
            return None
        best = self.sizes[index]
        same, addresses = self.by_size[best], self.addresses[best]
        while addresses[0] not in same:
            heappop(addresses)
        chunk = same[addresses[0]] if self.chance is None else self.chance.choice(list(same.values()))
        self.remove(chunk)
        return chunk

    def whole(self) -> list[Chunk]:
        return [chunk for same in self.by_size.values() for chunk in same.values() if chunk.is_whole]


class CuPyPool:
    """The pool. Blocks are identified by their numbers in the trace."""

    def __init__(self, device: int, chance: random.Random | None = None) -> None:
        self.device, self.chance = device, chance
        self.taken = 0  # from the device
        self.used = 0  # by blocks
        self.streams: dict[int, FreeChunks] = {}
        self.blocks: dict[int, Chunk] = {}
        self.pieces = 0

    def allocate(self, block: int, size: int, stream: int) -> bool:
        """Allocate a block, and return whether that succeeded."""
        size = max(UNIT, -(-size // UNIT) * UNIT)
        free = self.streams.setdefault(stream, FreeChunks(self.chance))
        chunk = free.take(size) or self.take_from_device(size, stream)
        if chunk is None:
            return False
        if chunk.size > size:
            free.add(split(chunk, size))
        self.blocks[block] = chunk
        self.used += size
        return True

    def free(self, block: int) -> None:
        chunk = self.blocks.pop(block)
        self.used -= chunk.size
        free = self.streams[chunk.stream]
        if chunk.next is not None and chunk.next.is_free:
            free.remove(chunk.next)
            merge(chunk, chunk.next)
        if chunk.previous is not None and chunk.previous.is_free:
            free.remove(chunk.previous)
            chunk = merge(chunk.previous, chunk)
        free.add(chunk)

    def take_from_device(self, size: int, stream: int) -> Chunk | None:
        if self.taken + size > self.device:
            self.give_back()
        if self.taken + size > self.device:
            return None
        self.taken += size
        self.pieces += 1
        return Chunk(self.pieces << 44, size, stream)

    def give_back(self) -> None:
        for free in self.streams.values():
            for chunk in free.whole():
                free.remove(chunk)
                self.taken -= chunk.size

    def largest(self, stream: int) -> int:
        """The largest request that would pass, after entirely free pieces were returned."""
        sizes = self.streams[stream].sizes
        return max(self.device - self.taken, sizes[-1] if sizes else 0)


def split(chunk: Chunk, size: int) -> Chunk:
    """Split a chunk at ``size`` bytes and return the rest."""
    rest = Chunk(chunk.address + size, chunk.size - size, chunk.stream)
    rest.previous, rest.next = chunk, chunk.next
    if rest.next is not None:
        rest.next.previous = rest
    chunk.size, chunk.next = size, rest
    return rest


def merge(first: Chunk, second: Chunk) -> Chunk:
    first.size += second.size
    first.next = second.next
    if first.next is not None:
        first.next.previous = first
    return first


def play(events: Iterable[Event], device: int, seed: int | None = None) -> Death | None:
    """Replay a trace on a device of that size; ``None`` if it fits. With a seed, ties are broken at random."""
    pool = CuPyPool(device, None if seed is None else random.Random(seed))
    for number, event in enumerate(events):
        if event.kind == "free":
            pool.free(event.block)
        elif event.kind == "allocate" and not pool.allocate(event.block, event.size, event.stream):
            return Death(number, event.size, device - pool.used, pool.largest(event.stream))
    return None


def smallest_device(events: list[Event], low: int, high: int, step: int, seed: int | None = None) -> int:
    """The smallest device on which a trace fits, in multiples of ``step``. ``high`` is known to be enough."""
    first, last = low // step, high // step
    while first < last:
        middle = (first + last) // 2
        if play(events, middle * step, seed) is None:
            last = middle
        else:
            first = middle + 1
    return first * step
