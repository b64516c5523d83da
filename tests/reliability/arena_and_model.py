"""An arena and the model beside it: both get the same requests and frees, and these invariants hold at any time."""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

import arena
from arena import ArenaError, DriverError, OutOfMemoryError, sim

from ..simulated.conftest import fresh
from ..simulated.cu import Cu
from .model import Held, Model, Room, rounded
from .queued_work import Queue, no_races

KIB, MIB = 1 << 10, 1 << 20
Fault = tuple[str, int, int, str]  # function, which call of it, how many calls, error


class ArenaAndModel(RuleBasedStateMachine):
    """An arena and the model beside it. Subclasses decide what happens to them."""

    granule = 64 * KIB
    total = 16 * MIB
    cap = cap_now = 6 * MIB
    is_movable = True  # live data can be moved under its pointers
    is_counted_at_once = True  # driver and arena count at the same moment, even with several threads
    taken = runs = 0  # steps of all runs

    def make(self, **settings: Any) -> arena.Arena:
        return arena.Arena(**settings)

    @initialize(
        growth=st.sampled_from([1, 4, 16]), headroom=st.sampled_from([0, 0, 24]), reserve=st.sampled_from([0, 9])
    )
    def start(self, growth: int, headroom: int, reserve: int) -> None:
        self.configure()
        self.freeze_live_objects()
        self.cu = Cu()
        self.cu.start()
        self.queue = Queue(self.cu)
        self.growth, self.headroom, self.kept = growth, headroom * self.granule, reserve * self.granule
        self.highest, self.other, self.has_run_threads = self.cap, 0, False
        sizes = {"cap": self.cap, "headroom": self.headroom, "reserve": self.kept, "growth": growth * self.granule}
        self.pool = self.make(**sizes)
        self.model = Model(self.granule)
        self.buffers: dict[int, arena.Buffer] = {}
        self.streams = [0, self.cu.stream(), self.cu.stream()]
        self.scopes: list[tuple[arena.Scope, Room]] = []
        self.left: list[tuple[arena.Scope, Room]] = []
        self.values = 0
        self.used = sim.used()
        with self.pool.allocate(1) as first:
            self.base = first.ptr  # the lowest address in an empty arena
        self.model.peak_requested, self.model.peak_live = 1, 512
        self.used = sim.used()

    # Every failing request collects garbage, and Hypothesis keeps many live objects.
    def freeze_live_objects(self) -> None:
        type(self).runs += 1
        if self.runs % 50 == 0:
            gc.unfreeze()
            gc.collect()
        gc.freeze()

    def configure(self) -> None:
        fresh(memory=self.total, granularity=self.granule)

    # Not a precondition: what is live depends on timing, and Hypothesis wants the same rules to be available again.
    def pick(self, which: int, blocks: list[Held] | None = None) -> Held | None:
        blocks = self.model.blocks if blocks is None else blocks
        return blocks[which % len(blocks)] if blocks else None

    @property
    def cap_granules(self) -> int:
        return self.cap_now // self.granule * self.granule

    @property
    def least_limit(self) -> int:
        """Bytes of whole granules that may be taken, whatever is taken already."""
        room = max(0, self.total - self.other - self.headroom)
        return min(self.cap_granules, room // self.granule * self.granule)

    def record_use(self, block: Held, user: int) -> None:
        self.buffers[block.ptr].record_stream(user)

    def next_value(self) -> int:
        self.values += 1
        return self.values % 251 + 1

    @contextlib.contextmanager
    def planned(self, fault: Fault | None) -> Iterator[None]:
        if fault:
            sim.fail(fault[0], fault[3], nth=fault[1], times=fault[2])
        try:
            yield
        finally:
            sim.clear_planned()

    def attempt(self, call: Callable[[], object], fault: Fault | None, fails: bool = False) -> bool:
        """Whether a call passed. It may fail only if it has to, or was made to."""
        try:
            with self.planned(fault):
                call()
        except ArenaError as error:
            if not fault and not (fails and isinstance(error, OutOfMemoryError)):
                raise
            self.drop_lost_blocks(error)
            return False
        return True

    def request(self, size: int, stream: int, fault: Fault | None) -> bool:
        must = None if fault else self.must_pass(size)
        error: ArenaError | None = None
        try:
            with self.planned(fault):
                buffer = self.pool.allocate(size, stream)
        except ArenaError as refused:
            if not fault and not isinstance(refused, OutOfMemoryError):
                raise
            error = refused
        if error is None:
            assert must is not False, f"{size} bytes passed that cannot"
            rooms = tuple(room for _, room in self.scopes)
            assert all(room.has(rounded(size)) for room in rooms)
            block = Held(buffer.ptr, size, stream, self.next_value(), rooms)
            self.model.add(block)
            self.buffers[block.ptr] = buffer
            self.queue.fill(block.ptr, size, block.value, stream)
            return True
        self.drop_lost_blocks(error)
        if not fault:
            assert must is not True, f"{size} bytes: {error}"
            assert not self.fits_after_all(size), f"{size} bytes: {error}"
            over_budget = not all(room.has(rounded(size)) for _, room in self.scopes)
            assert isinstance(error, OutOfMemoryError)
            assert error.verdict.startswith("budget of scope") == over_budget
        return False

    def must_pass(self, size: int) -> bool | None:
        """Whether a request has to pass or to fail; None if that depends on more than the model knows."""
        if not all(room.has(rounded(size)) for _, room in self.scopes):
            return False
        needed = len(self.model.touched()) + self.model.fewest_new(min(rounded(size), 4 * self.total), self.base)
        needed *= self.granule
        if needed > max(self.least_limit, sim.used()):
            return False
        if any(block.pins for block in self.model.blocks) or needed > self.least_limit:
            return None
        return True

    def fits_after_all(self, size: int) -> bool:
        """For a failed request: whether it fits even though some free memory is pinned in place."""
        if not all(room.has(rounded(size)) for _, room in self.scopes):
            return False
        beside = self.model.untouched_beside_pins(self.pool.snapshot().handles)
        needed = len(self.model.touched()) + self.model.fewest_new(min(rounded(size), 4 * self.total), self.base)
        return (needed + beside) * self.granule <= self.least_limit

    def drop_lost_blocks(self, error: ArenaError) -> None:
        """A re-backing that fails halfway may lose data. The error says so, and those blocks are no longer live."""
        live = {piece.address for piece in self.pool.snapshot().pieces if piece.state == "live"}
        for block in [block for block in self.model.blocks if block.ptr not in live]:
            assert "lost" in str(error) or isinstance(error, DriverError), error
            self.model.remove(block)
            self.buffers.pop(block.ptr).free()

    def free_block(self, block: Held, fault: Fault | None) -> None:
        self.queue.read_block(block)
        buffer = self.buffers.pop(block.ptr)
        self.model.remove(block)
        with contextlib.suppress(DriverError), self.planned(fault):
            buffer.free()
        buffer.free()  # a second time does nothing

    def leave_last_scope(self) -> None:
        self.scopes[-1][0].__exit__()
        self.left.append(self.scopes.pop())

    # The invariants.

    @invariant(check_during_init=False)
    def everything_holds(self) -> None:
        if not hasattr(self, "model"):
            return
        type(self).taken += 1
        self.pool.validate()
        s = self.pool.stats()
        assert s.reserved == s.requested + s.rounding + s.pending + s.captured + s.releasable + s.stranded + s.spare
        assert (s.requested, s.live, s.blocks) == (self.model.requested, self.model.live, len(self.model.blocks))
        assert (s.peak_requested, s.peak_live) == (self.model.peak_requested, self.model.peak_live)
        assert s.reserved == sim.used() <= max(self.cap_now, self.used)
        assert max(s.peak_reserved, sim.peak()) <= self.highest
        if self.is_counted_at_once or not self.has_run_threads:
            assert s.peak_reserved == sim.peak()
        if sim.used() > self.used:
            assert self.total - self.other - sim.used() >= self.headroom
        self.used = sim.used()
        for scope, room in (*self.scopes, *self.left):
            assert (scope.live, scope.peak, scope.blocks) == (room.live, room.peak, room.blocks)
        no_races()

    errors: ClassVar[list[str]] = []

    def note(self) -> None:
        """Keep an error for the test to report: Hypothesis hides timing-dependent failures behind its own error."""
        if isinstance(sys.exc_info()[1], Exception):
            self.errors.append(traceback.format_exc())

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        try:
            self.end()
        except Exception:
            self.note()
            raise

    def end(self) -> None:
        sim.configure(delay=0)
        if sys.exc_info()[0] is not None:  # an error was found already
            self.note()
            self.cu.ok("cuCtxSynchronize_v2", 0)
            self.scopes.clear()
            self.buffers.clear()
            self.pool.close()
            return
        while self.scopes:
            self.leave_last_scope()
        for block in list(self.model.blocks):
            self.free_block(block, None)
        self.queue.check()
        self.queue.close()
        self.everything_holds()
        assert not any(scope.leaked for scope, _ in self.left)
        self.left.clear()
        self.pool.close()
        del self.pool
        gc.collect()
        census = sim.census()
        left = (sim.used(), census.handles, census.mappings, census.reservations, census.events)
        assert left == (0, 0, 0, 0, 0), left
        no_races()
