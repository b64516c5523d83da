"""A program that makes an arena use every driver call it ever uses, in steps that do not depend on each other.

The program itself calls only driver functions that the arena does not call, so every counted call is the arena's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import arena
from arena import ArenaError, sim

from ..simulated.conftest import fresh
from ..simulated.cu import Cu, OwnedStream

CAP = 24  # in units: granules, or the unit of plain segments
VIRTUAL_UNIT, PLAIN_UNIT = 64 << 10, 2 << 20
WRITTEN = 512  # bytes of a buffer at its start and at its end; more would dominate the running time
OWN_CALLS = {
    "cuMemsetD8Async",
    "cuMemcpyDtoHAsync",
    "cuStreamSynchronize",
    "cuStreamBeginCapture",
    "cuStreamEndCapture",
}
OWN_CALLS |= {"cuGraphDestroy", "cuCtxSetCurrent"}


Stream = int | OwnedStream


def handle(stream: Stream) -> int:
    return stream if isinstance(stream, int) else stream.ptr


class Machine:
    """A small simulated device with three streams, and no context current in this thread.

    The arena can query the stream with an owner at any time. For a plain number it must query the whole context.
    """

    def __init__(self) -> None:
        fresh(memory=4 * CAP * PLAIN_UNIT, granularity=VIRTUAL_UNIT, devices=2)
        self.cu = Cu()
        self.context = self.cu.start()
        self.streams: list[Stream] = [0, self.cu.owned_stream(), self.cu.stream()]
        self.cu.ok("cuCtxSetCurrent", 0)

    def __call__(self, *calls: tuple[Any, ...]) -> None:
        """Call driver functions, each given as a name and its arguments, with the context current."""
        assert self.has_no_context(), "the arena left its context behind"
        self.cu.ok("cuCtxSetCurrent", self.context)
        try:
            for call in calls:
                self.cu.ok(*call)
        finally:
            self.cu.ok("cuCtxSetCurrent", 0)

    def has_no_context(self) -> bool:
        """Whether every call left this thread as it was."""
        return self.cu.cuMemsetD8Async(0, 0, 0, 0) == "CUDA_ERROR_INVALID_CONTEXT"

    def is_relaxed(self) -> bool:
        """Whether this thread was left in another capture mode."""
        mode = ctypes.c_uint(0)
        self.cu.ok("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        return mode.value != 0


def ends(buffer: arena.Buffer) -> tuple[int, int]:
    """The addresses at which a buffer is written."""
    return buffer.ptr, buffer.ptr + buffer.nbytes - WRITTEN


class Program:
    """Steps with an arena. Every buffer holds a pattern at both ends, which is checked before it is freed."""

    def __init__(self, machine: Machine, *, vmm: bool, before_end: Callable[[], None] = lambda: None) -> None:
        self.machine = machine
        self.before_end = before_end
        self.vmm = vmm
        self.unit = VIRTUAL_UNIT if vmm else PLAIN_UNIT
        self.pool: arena.Arena | None = None
        self.held: list[tuple[arena.Buffer, int, int]] = []
        self.values = 0
        self.refused: list[ArenaError] = []  # without their context, which would keep the arena alive

    def steps(self) -> Iterator[Callable[[], object]]:
        yield self.open
        yield self.grow
        yield self.share_between_streams
        yield self.wait_on_the_device
        yield self.record_a_stream
        yield self.look
        yield self.trim
        yield self.wait
        yield self.move_live_data
        yield self.capture
        yield self.reserve_and_cap
        yield self.fill_up
        yield self.compact
        yield self.drop_all
        yield self.close

    def run(
        self,
        after_each: Callable[[Program], None] = lambda program: None,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """Run all steps. If `goes_on` returns False, repeat the last step, and run the final ones."""
        for step in self.steps():
            self.attempt(step)
            if self.pool is not None:
                after_each(self)
            if self.pool is None or not (step == self.close or goes_on()):
                refused = len(self.refused)
                for last in (step, self.drop_all, self.close):
                    self.attempt(last)
                    after_each(self)
                assert len(self.refused) == refused, "what failed once fails again"
                return

    def attempt(self, step: Callable[[], object]) -> None:
        try:
            step()
        except ArenaError as error:
            error.__context__ = None
            self.refused.append(error.with_traceback(None))
            self.drop_all()  # so that the next step can pass
            if self.pool is not None and self.pool._core is not None:
                self.pool.release_graphs()  # which keep memory that the driver reported as captured

    @property
    def arena(self) -> arena.Arena:
        assert self.pool is not None
        return self.pool

    def take(self, units: float, stream: int = 0) -> arena.Buffer:
        used = self.machine.streams[stream]
        buffer = self.arena.allocate(int(units * self.unit), used)
        number = handle(used)
        self.values = self.values % 255 + 1
        self.write(buffer, self.values, number)
        self.held.append((buffer, self.values, number))
        return buffer

    def write(self, buffer: arena.Buffer, value: int, stream: int) -> None:
        self.machine(*[("cuMemsetD8Async", end, value, WRITTEN, stream) for end in ends(buffer)])

    def check(self, entries: list[tuple[arena.Buffer, int, int]]) -> None:
        """Check on its own stream that each buffer holds what was written.

        The default stream comes last: reading there waits for the arena's own copies, and would hide that the arena did
        not wait for them.
        """
        entries = sorted(entries, key=lambda entry: entry[2] == 0)
        places = [(end, stream) for buffer, _, stream in entries for end in ends(buffer)]
        data = ctypes.create_string_buffer(WRITTEN * len(places))
        to = range(ctypes.addressof(data), ctypes.addressof(data) + len(data), WRITTEN)
        copies = [("cuMemcpyDtoHAsync", to[i], end, WRITTEN, stream) for i, (end, stream) in enumerate(places)]
        self.machine(*copies, *[("cuStreamSynchronize", stream) for stream in {stream for _, stream in places}])
        wanted = b"".join(bytes([value]) * (2 * WRITTEN) for _, value, _ in entries)
        assert data.raw == wanted, f"{[buffer for buffer, _, _ in entries]} do not hold what was written"

    def drop(self, *buffers: arena.Buffer) -> None:
        entries = [entry for entry in self.held if entry[0] in buffers]
        self.check(entries)
        for entry in entries:
            self.held.remove(entry)
            entry[0].free()

    def open(self) -> None:
        self.pool = arena.Arena(
            cap=CAP * self.unit, growth=8 * self.unit, headroom=self.unit, compact=True, vmm=self.vmm
        )  # with headroom, the arena asks the device how much is free

    def grow(self) -> None:
        for size, stream in ((1, 1), (2, 2), (4, 0), (0.5, 0), (0.1, 1)):
            self.take(size, stream)

    def share_between_streams(self) -> None:
        """What one stream freed goes to the other once an event shows that it is done."""
        first = self.take(3, 1)
        self.drop(first)
        second = self.take(3, 2)
        self.drop(second)
        self.drop(self.take(6, 0))

    def wait_on_the_device(self) -> None:
        """The cap is reached, and only memory in use by another stream is left."""
        self.drop_all()
        self.arena.trim()
        first, rest = self.take(CAP / 2, 1), self.take(CAP / 2, 0)
        with sim.temporarily(delay=1000):
            self.write(first, 0, handle(self.machine.streams[1]))
        self.held = [entry for entry in self.held if entry[0] is rest]
        first.free()
        self.drop(self.take(CAP / 2, 2), rest)

    def record_a_stream(self) -> None:
        buffer = self.take(2, 1)
        buffer.record_stream(self.machine.streams[2])
        self.drop(buffer)
        self.drop(self.take(2, 0))

    def look(self) -> None:
        self.arena.stats()
        self.arena.snapshot()

    def trim(self) -> None:
        self.drop(*[buffer for buffer, _, _ in self.held if buffer.nbytes < self.unit])
        self.arena.trim()

    def wait(self) -> None:
        """A request needs memory that a stream is still using."""
        self.drop_all()
        self.arena.trim()
        first, between, last = self.take(8, 1), self.take(8, 0), self.take(8, 1)
        with sim.temporarily(delay=1000):
            for buffer in (first, last):
                self.write(buffer, 0, handle(self.machine.streams[1]))
        self.held = [entry for entry in self.held if entry[0] is between]
        first.free()
        last.free()
        self.drop(self.take(12, 2), between)

    def move_live_data(self) -> None:
        """Fill large handles with small blocks and free every other one. Under the later cap, a large block fits only
        where the others are."""
        try:
            self.arena.set_cap(3 * CAP * self.unit)
            small = [self.take(1, index % 3) for index in range(CAP)]
            self.drop(*small[::2])
        finally:
            self.arena.set_cap(CAP * self.unit)
        if self.vmm:
            self.take(10, 1)
        self.drop_all()

    def capture(self) -> None:
        """Capture a stream that the arena can query while another one is in use; the graph is destroyed at once."""
        self.drop(self.take(2, 1))
        self.arena.trim()
        (_, stream, other), graph = self.machine.streams, ctypes.c_void_p()
        self.machine(("cuStreamBeginCapture", handle(stream), 1))
        try:
            kept = [self.arena.allocate(self.unit, stream), self.arena.allocate(2 * self.unit, other)]
            self.arena.trim()
            kept.clear()
        finally:
            self.machine(("cuStreamEndCapture", handle(stream), ctypes.byref(graph)), ("cuGraphDestroy", graph))
            self.arena.release_graphs()

    def reserve_and_cap(self) -> None:
        self.arena.reserve(12 * self.unit)
        try:
            self.arena.set_cap(10 * self.unit)
        finally:
            self.arena.set_cap(CAP * self.unit)

    def fill_up(self) -> None:
        """Request more than there is, so that every way to make room is tried."""
        self.take(9, 2)
        buffer = self.take(5, 1)
        try:
            self.take(CAP, 1)
        except arena.OutOfMemoryError as error:
            if error.verdict not in ("cap reached", "headroom kept"):
                raise
        self.drop(buffer)

    def compact(self) -> None:
        self.arena.trim(compact=self.vmm)

    def drop_all(self) -> None:
        self.drop(*[buffer for buffer, _, _ in self.held])

    def close(self) -> None:
        last, core = self.arena.allocate(self.unit), self.arena._core
        self.arena.close()
        last.free()
        self.before_end()
        del core  # the arena ends with its last reference
