"""A state machine that uses an arena at random, as programs do, and compares it with the model after each step."""

from __future__ import annotations

import contextlib
import random
import sys
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

import arena
from arena import UsageError, sim

from ..arena.upstream import Upstream
from ..threads import run_together
from .arena_and_model import KIB, MIB, ArenaAndModel, Fault
from .model import Held, Room, rounded, up
from .thread_workload import ThreadWorkload

ERRORS = ("CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_UNKNOWN", "CUDA_ERROR_INVALID_VALUE")
FUNCTIONS = (
    *("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemAlloc", "cuMemFree"),
    *("cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventSynchronize", "cuStreamWaitEvent", "cuCtxSynchronize"),
    *("cuMemcpyDtoH", "cuMemcpyHtoD", "cuMemGetInfo", "cuStreamIsCapturing"),
)

# One call in eight has a planned driver failure.
faults = st.one_of(
    *[st.none()] * 7,
    st.tuples(st.sampled_from(FUNCTIONS), st.integers(1, 4), st.integers(1, 2), st.sampled_from(ERRORS)),
)
picks = st.integers(0, 1 << 16)


class Steps(ArenaAndModel):
    """The steps. Subclasses decide where memory comes from."""

    @rule(size=st.deferred(lambda: sizes), stream=picks, fault=faults)
    def allocate(self, size: int, stream: int, fault: Fault | None) -> None:
        self.request(size, self.streams[stream % len(self.streams)], fault)

    @rule(several=st.lists(st.tuples(st.deferred(lambda: sizes), picks), min_size=2, max_size=6))
    def allocate_several(self, several: list[tuple[int, int]]) -> None:
        for size, stream in several:
            self.request(size, self.streams[stream % len(self.streams)], None)

    @rule(granules=st.integers(1, 40), odd=st.sampled_from([-512, -1, 0, 1, 512]), stream=picks, fault=faults)
    def allocate_about_some_granules(self, granules: int, odd: int, stream: int, fault: Fault | None) -> None:
        self.request(granules * self.granule + odd, self.streams[stream % len(self.streams)], fault)

    @rule(seed=picks, stream=picks)
    def leave_holes(self, seed: int, stream: int) -> None:
        """Allocate adjacent blocks and free every other one, so that large handles stay in use."""
        chance = random.Random(seed)
        for i in range(12):
            if (
                self.request(chance.randrange(8 * self.granule), self.streams[stream % len(self.streams)], None)
                and i % 2
            ):
                self.free_block(self.model.blocks[-1], None)

    @rule(several=st.lists(st.deferred(lambda: sizes), min_size=1, max_size=3), seed=picks, stream=picks)
    def use_again(self, several: list[int], seed: int, stream: int) -> None:
        """Reuse the same sizes without inspecting the arena: freed blocks are cached and served on the fast path."""
        chance, mine = random.Random(seed), list[Held]()
        for _ in range(24):
            if mine and chance.random() < 0.5:
                self.free_block(mine.pop(chance.randrange(len(mine))), None)
            elif self.request(chance.choice(several), self.streams[stream % len(self.streams)], None):
                mine.append(self.model.blocks[-1])

    @rule(stream=picks)
    def allocate_the_largest(self, stream: int) -> None:
        """The largest request that is said to pass does pass."""
        largest = self.pool.snapshot().stats["largest"]
        if largest and all(room.has(largest) for _, room in self.scopes):
            assert self.request(largest, self.streams[stream % len(self.streams)], None), largest

    @rule(which=picks, fault=faults)
    def free(self, which: int, fault: Fault | None) -> None:
        if block := self.pick(which):
            self.free_block(block, fault)

    @rule(seed=picks, share=st.sampled_from([0.3, 0.6, 1]))
    def free_many(self, seed: int, share: float) -> None:
        blocks = random.Random(seed).sample(self.model.blocks, int(share * len(self.model.blocks)))
        for block in blocks:
            self.free_block(block, None)

    @rule(which=picks)
    def free_what_is_not_live(self, which: int) -> None:
        live = {block.ptr for block in self.model.blocks}
        stale = self.base + which * 512
        if stale not in live:
            with contextlib.suppress(UsageError):
                self.pool._open.free(stale)
                raise AssertionError(f"{stale:#x} is not live, and was freed")

    @precondition(lambda self: len(self.streams) < 6)
    @rule(blocking=st.booleans())
    def make_stream(self, blocking: bool) -> None:
        self.streams.append(self.cu.stream(non_blocking=not blocking))

    @precondition(lambda self: len(self.streams) > 1)
    @rule(which=picks)
    def destroy_stream(self, which: int) -> None:
        stream = self.streams.pop(1 + which % (len(self.streams) - 1))
        self.cu.ok("cuStreamDestroy", stream)
        for block in self.model.blocks:
            block.users.discard(stream)
            if block.stream == stream:
                block.stream = None

    @rule(which=picks, stream=picks)
    def record_stream(self, which: int, stream: int) -> None:
        user = self.streams[stream % len(self.streams)]
        for block in filter(None, (self.pick(which + i) for i in range(3))):
            if block.stream is not None:
                self.record_use(block, user)
                if user != block.stream:
                    self.queue.share(block, user)
                    block.users.add(user)

    @rule(which=picks)
    def pin(self, which: int) -> None:
        if block := self.pick(which):
            self.pool.pin(self.buffers[block.ptr])
            block.pins += 1

    @rule(which=picks)
    def unpin(self, which: int) -> None:
        if block := self.pick(which, [block for block in self.model.blocks if block.pins]):
            self.pool.unpin(self.buffers[block.ptr])
            block.pins -= 1

    @rule(share=st.floats(0, 1.5), odd=st.sampled_from([0, 0, 1]), fault=faults)
    def set_cap(self, share: float, odd: int, fault: Fault | None) -> None:
        cap = min(int(share * self.cap) // self.granule * self.granule + odd, self.total)
        self.cap_now = cap
        self.highest = max(self.highest, cap)
        if self.attempt(lambda: self.pool.set_cap(cap), fault):
            stats = self.pool.stats()
            assert stats.reserved <= cap or stats.spare + stats.releasable == 0

    @rule(fault=faults)
    def trim(self, fault: Fault | None) -> None:
        if self.attempt(self.pool.trim, fault):
            stats = self.pool.stats()
            free = stats.spare + stats.releasable
            assert free == 0 or stats.reserved - free < up(self.kept, self.granule)

    @rule(fault=faults)
    def compact(self, fault: Fault | None) -> None:
        """Every granule that no live block touches goes back, except those beside pinned blocks and the reserve."""
        if self.attempt(lambda: self.pool.trim(compact=True), fault) and self.is_movable:
            least = len(self.model.touched()) * self.granule
            if not any(block.pins for block in self.model.blocks):
                # A handle is returned whole, so the reserve may keep up to a part of a handle more.
                kept = up(self.kept, self.granule)
                most = least if least >= kept else kept + (self.growth - 1) * self.granule
                assert least <= self.pool.stats().reserved <= most

    @rule(granules=st.integers(0, 110), odd=st.sampled_from([0, 1, 512]), fault=faults)
    def reserve(self, granules: int, odd: int, fault: Fault | None) -> None:
        size = granules * self.granule + odd
        wanted = up(size, self.granule) if size > self.cap_now else min(up(size, self.granule), self.cap_granules)
        if self.attempt(lambda: self.pool.reserve(size), fault, fails=wanted > self.least_limit):
            self.kept = max(self.kept, size)
            assert self.pool.stats().reserved >= wanted

    @precondition(lambda self: len(self.scopes) < 3)
    @rule(budget=st.one_of(st.none(), st.integers(0, 4 * MIB)))
    def enter_scope(self, budget: int | None) -> None:
        scope = self.pool.scope(f"scope {len(self.left)}", budget=budget)
        self.scopes.append((scope.__enter__(), Room(budget)))

    @precondition(lambda self: self.scopes)
    @rule()
    def leave_scope(self) -> None:
        self.leave_last_scope()

    @rule(how=st.sampled_from(["stats", "snapshot", "report", "metrics"]), times=st.integers(1, 3))
    def look(self, how: str, times: int) -> None:
        """Inspecting changes nothing, except that the arena may learn what streams have done."""
        before, calls = self.figures(), sim.calls("cuMemMap") + sim.calls("cuMemUnmap") + sim.calls("cuMemCreate")
        for _ in range(times):
            str(getattr(self.pool, how)())
        changed = {name: (before[name], now) for name, now in self.figures().items() if now != before[name]}
        assert not changed, changed
        assert sim.calls("cuMemMap") + sim.calls("cuMemUnmap") + sim.calls("cuMemCreate") == calls

    def figures(self) -> dict[str, int]:
        self.pool.metrics()  # asks how much the device has left, unlike stats()
        stats = self.pool.stats()
        known = ("driver_calls", "pending", "releasable")  # inspecting queries the driver, which may change these
        names = [name for name in dir(stats) if not name.startswith("_") and name not in known]
        return {"idle": stats.pending + stats.releasable, **{name: getattr(stats, name) for name in names}}

    @rule(share=st.floats(0, 1))
    def let_others_take(self, share: float) -> None:
        """Another process takes some of the free memory, or returns it."""
        self.other = int(share * (self.total - sim.used())) // 512 * 512
        sim.configure(other=self.other)

    @rule(delay=st.sampled_from([0, 0, 50, 300]), seed=picks)
    def change_pace(self, delay: int, seed: int) -> None:
        sim.configure(delay=delay, seed=seed)

    @rule()
    def synchronise(self) -> None:
        self.queue.check()

    @rule(threads=st.integers(2, 4), seed=picks)
    def run_threads(self, threads: int, seed: int) -> None:
        """Run several threads. With handles of single granules nothing has to be moved, so what fits must pass."""
        self.has_run_threads = True
        plans = [random.Random(seed + i).choices(range(1, 5 * self.granule), k=5) for i in range(threads)]
        most = sum((size - 1) // self.granule + 2 for plan in plans for size in plan)
        fits = self.growth == 1 and self.is_movable
        fits = fits and (len(self.model.touched()) + most) * self.granule <= self.least_limit
        kept: list[tuple[Held, arena.Buffer]] = []

        chances = [random.Random(seed * 31 + number) for number in range(threads)]
        run_together(
            *[ThreadWorkload(self, plan, chance, kept, fits).run for plan, chance in zip(plans, chances, strict=True)]
        )
        for block, buffer in kept:
            self.model.add(block)
            self.buffers[block.ptr] = buffer
        stats = self.pool.stats()
        self.model.peak_requested, self.model.peak_live = stats.peak_requested, stats.peak_live


sizes = st.one_of(
    st.sampled_from([0, 1, 2, 511, 512, 513, 1024]),
    st.integers(0, 8 * KIB),
    st.integers(0, 3 * MIB),
    st.sampled_from([Steps.cap - 1, Steps.cap, Steps.cap + 1, Steps.total, 1 << 40, 1 << 62]),
)


class Stitched(Steps):
    """Virtual memory with granules of 64 KiB, so that much happens with few bytes."""

    def must_pass(self, size: int) -> bool | None:
        assert len(sys._current_frames()) == 1  # or live data could not be moved, and the model would be wrong
        return super().must_pass(size)


class Plain(Steps):
    """Plain segments, whose unit is fixed."""

    granule = 2 * MIB
    total = 128 * MIB
    cap = cap_now = 48 * MIB
    is_movable = False
    is_counted_at_once = False  # segments are taken and returned without the lock

    def make(self, **settings: Any) -> arena.Arena:
        return super().make(**settings, vmm=False)

    def must_pass(self, size: int) -> bool | None:
        return None if all(room.has(rounded(size)) for _, room in self.scopes) else False

    def fits_after_all(self, size: int) -> bool:
        if not all(room.has(rounded(size)) for _, room in self.scopes):
            return False
        # While others use the headroom, segments that go back could not be taken again, so none is exchanged.
        is_crowded = self.total - self.other - sim.used() < self.headroom
        limit = 0 if is_crowded else self.least_limit
        return self.model.fits_plain(rounded(size), self.pool.snapshot().segments, limit)


class FromUpstream(Plain):
    """Memory from an upstream function."""

    def make(self, **settings: Any) -> arena.Arena:
        return arena.Arena(**settings, upstream=Upstream(self.cu))

    def planned(self, fault: Fault | None) -> contextlib.AbstractContextManager[None]:
        # It must be able to free its own memory: the arena has no part in that.
        return super().planned(None if fault and fault[0] == "cuMemFree" else fault)
