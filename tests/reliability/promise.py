"""Random programs that check every request against the promise: it fails only if it must.

:class:`View` decides what must happen, by trying every place. It knows what a snapshot says (handles and segments) and
where the program's own blocks are, but not how the arena finds its places. :class:`Program` makes the requests.
"""

from __future__ import annotations

import bisect
import contextlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import arena
from arena import OutOfMemoryError, sim

from ..arena.upstream import Upstream
from ..simulated.conftest import fresh
from ..simulated.cu import Cu
from .model import ALIGNMENT, rounded, up
from .queued_work import no_races

KIB, MIB = 1 << 10, 1 << 20


@dataclass(eq=False)
class Live:
    """A block of the program."""

    buffer: arena.Buffer
    stream: int
    pins: int = 0
    ptr: int = field(init=False)
    end: int = field(init=False)

    def __post_init__(self) -> None:
        self.ptr = self.buffer.ptr
        self.end = self.ptr + rounded(self.buffer.nbytes)


@dataclass(frozen=True)
class Mapped:
    """A handle at the addresses that remain once all mappings are removed on which only other blocks lie."""

    size: int
    places: list[int]
    used: list[int]  # for each granule, through which of them it is used


def mapped_in(snapshot: arena.Snapshot, blocks: Iterable[Live]) -> Iterator[Mapped]:
    """The handles of a snapshot. A piece listed at an address is used through that address."""
    listed = sorted((piece.address, piece.address + piece.size) for piece in snapshot.pieces)
    begins = [begin for begin, _ in listed]

    def is_listed(address: int) -> bool:
        at = bisect.bisect_right(begins, address + snapshot.granule - 1) - 1
        return at >= 0 and listed[at][1] > address

    for address, size in snapshot.handles:
        if address is None:
            continue
        aliases = [alias.address for alias in snapshot.aliases if alias.handle == address]
        kept = [a for a in aliases if any(block.ptr < a + size and a < block.end for block in blocks)]
        used = [
            next((alias for alias in kept if is_listed(alias + i)), address) for i in range(0, size, snapshot.granule)
        ]
        yield Mapped(size, [address, *kept], used)


def largest_mapped(snapshot: arena.Snapshot) -> int:
    """The largest free piece, however many handles it spans."""
    best = run = end = 0
    for piece in snapshot.pieces:
        is_free = piece.state not in ("live", "captured")
        run = (run if piece.address == end else 0) + piece.size if is_free else 0
        best, end = max(best, run), piece.address + piece.size
    return best


class View:
    """An arena on virtual memory at one moment. Sizes are in bytes; granules are counted from `base`.

    Some memory is *fixed* where it is: if data may not be moved, every handle that a live block touches; if it may, the
    touched granules, and handles with a pinned block. Everything else can be taken back and used anywhere, one granule
    at a time. So a block fits at a place if the fixed granules, plus those of the place that are not fixed, are within
    the limit. Beyond a lowered cap nothing is added, but a place that is mapped still works.

    Without moving, a place can also be assembled: from the free end of a touched handle, granules of untouched handles,
    and the free start of a touched handle. Handles with pinned blocks are left alone. So a handle may be mapped twice.
    Each of its granules is used through one address, and is a wall at the other. A second mapping without a block on it
    is removed before anything is tried except memory that is already mapped.
    """

    def __init__(
        self,
        mapped: Iterable[Mapped],
        blocks: Iterable[Live],
        *,
        granule: int,
        base: int,
        limit: int,
        moving: bool,
        there: int,
    ) -> None:
        self.granule, self.base, self.there = granule, base, there
        sorted_blocks = sorted((block.ptr - base, block.end - base, block.pins > 0) for block in blocks)
        mapped = list(mapped)
        ends = [place - base + handle.size for handle in mapped for place in handle.places]
        last = max([0, *ends, *(end for _, end, _ in sorted_blocks)])
        self.known = up(last, granule) // granule  # there is nothing from here on
        touched, pinned = bytearray(self.known), bytearray(self.known)
        for begin, end, is_pinned in sorted_blocks:
            for g in range(begin // granule, -(-end // granule)):
                touched[g] = 1
                pinned[g] |= is_pinned
        fixed, backed = bytearray(self.known), bytearray(self.known)
        walls, self.lent, taken, in_use = bytearray(self.known), [0, 0], 0, 0
        for handle in mapped:
            used = [(place - base) // granule + i for i, place in enumerate(handle.used)]
            for place in handle.places:
                for g in range((place - base) // granule, (place - base + handle.size) // granule):
                    walls[g] = g not in used
            is_pinned, is_in_use = any(pinned[g] for g in used), any(touched[g] for g in used)
            for g in used:
                backed[g] = 1
                fixed[g] = is_pinned or (touched[g] if moving else is_in_use)
                taken += fixed[g]
            in_use += len(used) * is_in_use
            if is_in_use and not is_pinned:
                states = bytes(touched[g] for g in used)
                self.lent = [max(self.lent[0], len(states.split(b"\1")[-1])), max(self.lent[1], states.index(1))]
        self.left = limit // granule - taken  # granules available beside the fixed ones
        self.left_for_stitch = max(0, limit // granule - in_use) if any(self.lent) else 0
        self.costs = [0, *accumulate(1 - is_fixed for is_fixed in fixed)]
        self.bare = [0, *accumulate(1 - is_backed for is_backed in backed)]
        self.gaps: list[tuple[int, int | None]] = []
        at = 0
        in_the_way = [(g * granule, (g + 1) * granule) for g in range(self.known) if walls[g]]
        for begin, end in sorted([*((begin, end) for begin, end, _ in sorted_blocks), *in_the_way]):
            if at < begin:
                self.gaps.append((at, begin))
            at = end
        self.gaps.append((at, None))  # a request never reaches the end of the addresses

    def places(self, size: int) -> Iterator[tuple[int, int]]:
        """The granules, as (first, end), of every place that can matter.

        Move a block down until it meets the border of its first granule, or the start of the gap: it touches no new
        granule. So a best place is always among those. Above everything known, every place is as good as the first.
        """
        granule = self.granule
        for begin, end in self.gaps:
            most = self.known * granule if end is None else end - size
            if begin <= most or end is None:
                yield begin // granule, -(-(begin + size) // granule)
            for at in range(up(begin, granule), most + 1, granule):
                yield at // granule, -(-(at + size) // granule)

    def cost(self, sums: list[int], begin: int, end: int) -> int:
        beyond = max(0, end - max(self.known, begin))
        return beyond + sums[min(end, self.known)] - sums[min(begin, self.known)]

    def fits(self, size: int) -> bool:
        size = rounded(size)
        if size <= self.there:
            return True
        if -(-size // self.granule) <= self.left_for_stitch + sum(self.lent):
            return True
        return any(
            self.cost(self.costs, begin, end) <= self.left or self.cost(self.bare, begin, end) == 0
            for begin, end in self.places(size)
        )


class PlainView:
    """The same on plain segments: a request needs a gap in one, or room for a new one beside those in use."""

    def __init__(
        self, segments: Iterable[tuple[int, int]], blocks: Iterable[Live], *, granule: int, limit: int | None
    ) -> None:
        self.granule = granule
        sorted_blocks = sorted((block.ptr, block.end) for block in blocks)
        in_use = self.largest_gap = 0
        for address, size in segments:
            at, is_used = address, False
            for begin, end in sorted_blocks:
                if address <= begin < address + size:
                    self.largest_gap = max(self.largest_gap, begin - at)
                    at, is_used = end, True
            self.largest_gap = max(self.largest_gap, address + size - at)
            in_use += size if is_used else 0
        self.left = 0 if limit is None else max(0, limit // granule * granule - in_use)

    def fits(self, size: int) -> bool:
        return rounded(size) <= self.largest_gap or up(rounded(size), self.granule) <= self.left


@dataclass(frozen=True)
class Mode:
    """How an arena is made, and whether its data may be moved."""

    name: str
    moving: bool = False
    compact: bool | str = "auto"
    kind: str = "virtual"  # or "plain" or "upstream"
    second_thread: bool = False


class Program:
    """One arena with random settings, and what happens to it."""

    def __init__(self, mode: Mode, seed: int) -> None:
        self.mode, self.chance, self.requests, self.refused = mode, random.Random(f"{mode.name} {seed}"), 0, 0
        choose = self.chance.choice
        self.is_plain = mode.kind != "virtual"
        self.granule = 2 * MIB if self.is_plain else choose([64 * KIB, 64 * KIB, 64 * KIB, 2 * MIB])
        self.cap = choose([12, 16, 24, 32]) * self.granule
        self.total = 4 * self.cap
        self.other, self.headroom = 0, choose([0, 0, 0, 2, 5]) * self.granule
        delay = choose([0, 0, 0, 20, 200])
        fresh(memory=self.total, granularity=64 * KIB if self.is_plain else self.granule, delay=delay, seed=seed)
        self.cu = Cu()
        self.cu.start()
        self.context = self.cu.out("cuCtxGetCurrent")
        self.streams = [0, *(self.cu.stream() for _ in range(choose([0, 0, 2])))]
        self.is_busy = delay > 0 or len(self.streams) > 1
        self.pins_share = choose([0, 0, 0.03, 0.1])
        self.changes_share = choose([0, 0.01, 0.03])
        self.event = self.cu.event()
        self.pool = self.make(
            cap=self.cap,
            growth=choose([1, 2, 4, 8, 64]) * self.granule,
            headroom=self.headroom,
            reserve=choose([0, 0, 0, 3, 9]) * self.granule,
            compact=mode.compact,
            vmm=mode.kind != "plain",
            upstream=Upstream(self.cu) if mode.kind == "upstream" else None,
        )
        with self.pool.allocate(1) as first:
            self.base = first.ptr  # the lowest address in an empty arena
        self.blocks: list[Live] = []

    def make(self, **settings: Any) -> arena.Arena:
        return arena.Arena(**settings)

    def limit(self) -> int:
        """Bytes that may be reserved now."""
        room = max(0, self.total - self.other - sim.used() - self.headroom)
        return min(self.cap, sim.used() + room)

    def view(self, moving: bool | None = None) -> View | PlainView:
        """The current state, in the arena's mode or another."""
        snapshot = self.pool.snapshot()
        if not self.is_plain:
            return View(
                mapped_in(snapshot, self.blocks),
                self.blocks,
                granule=self.granule,
                base=self.base,
                limit=self.limit(),
                moving=self.mode.moving if moving is None else moving,
                there=largest_mapped(snapshot),
            )
        # Segments are returned before a new one is taken, but not while others use the headroom.
        is_crowded = self.total - self.other - sim.used() < self.headroom
        limit = None if is_crowded else self.limit()
        return PlainView(snapshot.segments, self.blocks, granule=self.granule, limit=limit)

    def some_size(self) -> int:
        chance, granule = self.chance, self.granule
        kind = chance.random()
        if kind < 0.3:
            return chance.randrange(1, granule)
        if kind < 0.6:
            return chance.randint(1, 7) * granule + chance.choice([-512, -1, 0, 0, 1, 512])
        if kind < 0.95:
            return chance.randrange(1, 6 * granule)
        return chance.randrange(1, self.cap + granule)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        what = self.chance.random()
        if what < 0.58 or not self.blocks:
            self.request(self.some_size())
        elif what < 0.9:
            self.free(self.chance.choice(self.blocks))
        elif what < 0.92:
            for block in self.chance.sample(self.blocks, len(self.blocks) // 2):
                self.free(block)
        elif what < 0.96:
            self.check_largest()
        elif what < 0.96 + self.pins_share:
            self.pin_or_unpin(self.chance.choice(self.blocks))
        elif what > 1 - self.changes_share:
            self.change()

    def request(self, size: int) -> Live | None:
        """With and without a look at the arena before it: looking must not make a difference."""
        self.requests += 1
        stream = self.chance.choice(self.streams)
        must = self.view().fits(size) if self.chance.random() < 0.8 else None
        before = sim.used()
        refused = None
        try:
            buffer = self.pool.allocate(size, stream)
        except OutOfMemoryError as error:
            refused = error
        if refused:
            assert must is not True, f"{size} bytes were refused, but there is a place: {refused}"
            self.check_moving(refused)
            if refused.set_free_by_moving and self.mode.compact == "auto" and len(self.blocks) % 2:
                self.follow_advice(refused)
            else:
                self.check_refusal(size, refused.largest, stream)
            return None
        assert must is not False, f"{size} bytes were granted, but there is no place"
        assert sim.used() <= max(before, self.cap // self.granule * self.granule)
        if sim.used() > before:
            assert self.total - self.other - sim.used() >= self.headroom
        block = Live(buffer, stream)
        self.blocks.append(block)
        if self.is_busy:
            self.use(block)
        return block

    def check_refusal(self, size: int, largest: int, stream: int) -> None:
        """The error's `largest` is exactly the largest request that passes."""
        self.refused += 1
        view = self.view()
        assert not view.fits(size), f"{size} bytes were refused, but there is a place now"
        # An upstream function that had no memory cannot be asked how much it has.
        if self.mode.kind != "upstream" or self.other == 0:
            assert not view.fits(largest + ALIGNMENT), f"more than {largest} bytes fit"
        if largest:
            assert view.fits(largest), f"{largest} bytes do not fit"
            if self.chance.random() < 0.2:
                self.requests += 1
                self.pool.allocate(largest, stream).free()

    def check_moving(self, error: OutOfMemoryError) -> None:
        """What an error says about moving live data is true."""
        if self.is_plain:
            assert (error.set_free_by_moving, error.largest_with_moving) == (0, error.largest)
            return
        size, largest, view = error.requested, error.largest_with_moving, self.view(moving=True)
        assert (error.set_free_by_moving > 0) == view.fits(size), f"{size} bytes, moving: {error}"
        assert not view.fits(largest + ALIGNMENT), f"moving, more than {largest} bytes fit"
        assert not largest or view.fits(largest), f"moving, {largest} bytes do not fit"

    def follow_advice(self, error: OutOfMemoryError) -> None:
        """A safe point frees as much as the error said, and then the request passes."""
        assert self.pool.safe_point(budget=60) == error.set_free_by_moving
        self.requests += 1
        self.pool.allocate(error.requested).free()

    def check_largest(self) -> None:
        self.pool.metrics()  # asks how much the device has left, unlike stats()
        largest, view = self.pool.stats().largest, self.view()
        for moving in (False, True):
            stats = self.pool.stats()
            each = stats.largest_with_moving if moving else stats.largest_without_moving
            assert not self.view(moving).fits(each + ALIGNMENT), f"more than {each} bytes fit, {moving=}"
            assert not each or self.view(moving).fits(each), f"{each} bytes do not fit, {moving=}"
        assert not view.fits(largest + ALIGNMENT), f"more than {largest} bytes fit"
        assert not largest or view.fits(largest), f"{largest} bytes do not fit"
        if largest and self.chance.random() < 0.3:
            with_all = self.request(largest)
            assert with_all, f"{largest} bytes do not pass"
            self.free(with_all)
            # What is idle, and where, may have changed; what passes has not. Only an assembled place is still there,
            # and may have a new neighbour.
            if self.chance.random() < 0.5 or self.pool.snapshot().aliases:
                largest = self.pool.stats().largest
            assert not self.request(largest + ALIGNMENT), f"{largest + ALIGNMENT} bytes pass"

    def use(self, block: Live) -> None:
        """Work that may still be queued when the block is freed, sometimes on another stream as well."""
        nbytes = min(block.buffer.nbytes, 4 * KIB)
        self.cu.ok("cuMemsetD8Async", block.ptr, 1, nbytes, block.stream)
        if len(self.streams) > 1 and self.chance.random() < 0.2:
            user = self.chance.choice(self.streams)
            block.buffer.record_stream(user)
            self.cu.ok("cuEventRecord", self.event, block.stream)
            self.cu.ok("cuStreamWaitEvent", user, self.event, 0)
            self.cu.ok("cuMemsetD8Async", block.ptr, 2, nbytes, user)

    def free(self, block: Live) -> None:
        self.blocks.remove(block)
        block.buffer.free()

    def pin_or_unpin(self, block: Live) -> None:
        if block.pins and self.chance.random() < 0.5:
            self.pool.unpin(block.buffer)
            block.pins -= 1
        else:
            self.pool.pin(block.buffer)
            block.pins += 1

    def change(self) -> None:
        """Another cap, another user of the device, or memory that is returned or reserved."""
        chance = self.chance
        what = chance.random()
        if what < 0.35:
            self.cap = int(self.total * chance.uniform(0.05, 0.3)) // 512 * 512
            self.pool.set_cap(self.cap)
        elif what < 0.65:
            free = chance.choice([chance.randrange(8 * self.granule), chance.randint(0, 8) * self.granule, self.total])
            self.other = max(0, self.total - sim.used() - free) // 512 * 512
            sim.configure(other=self.other)
        elif what < 0.8:
            self.pool.trim(compact=self.mode.moving and chance.random() < 0.5)
        else:
            with contextlib.suppress(OutOfMemoryError):
                self.pool.reserve(min(chance.randint(1, 12) * self.granule, self.cap))

    def abandon(self) -> None:
        self.cu.ok("cuCtxSynchronize_v2", 0)
        self.blocks.clear()
        self.pool.close()

    def end(self) -> None:
        while self.blocks:
            self.free(self.blocks[-1])
        self.pool.validate()
        self.cu.ok("cuCtxSynchronize_v2", 0)
        self.cu.ok("cuEventDestroy", self.event)
        for stream in self.streams[1:]:
            self.cu.ok("cuStreamDestroy", stream)
        sim.configure(delay=0)  # or the arena would not know yet that everything is done
        self.pool.close()
        no_races()
        assert sim.used() == 0
