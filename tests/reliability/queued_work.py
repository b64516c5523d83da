"""Real queued work: blocks are filled on their streams, and read there before they are freed."""

from __future__ import annotations

import ctypes
import threading

from arena import sim

from ..simulated.cu import Cu
from .model import Held

ROOM = 32 << 20  # bytes of reads that are not checked yet


class Queue:
    """Fills blocks and reads them back into pinned memory, which is checked later."""

    def __init__(self, cu: Cu) -> None:
        self.cu = cu
        self.room = ROOM
        self.context = cu.out("cuCtxGetCurrent")
        self.host = cu.out("cuMemHostAlloc", ROOM, 0)
        self.lock = threading.Lock()
        self.used = 0
        self.expected: list[tuple[int, int, int]] = []
        self.event = cu.event()

    def enter_thread(self) -> None:
        self.cu.ok("cuCtxSetCurrent", self.context)

    def fill(self, ptr: int, nbytes: int, value: int, stream: int) -> None:
        if nbytes:
            self.cu.ok("cuMemsetD8Async", ptr, value, nbytes, stream)

    def read(self, ptr: int, nbytes: int, value: int, stream: int) -> None:
        """Queue a read that check() will compare, up to the room that is left."""
        with self.lock:
            nbytes = min(nbytes, ROOM - self.used)
            place = self.host + self.used
            self.used += nbytes
            self.expected.append((place, nbytes, value))
        if nbytes:
            self.cu.ok("cuMemcpyDtoHAsync", place, ptr, nbytes, stream)

    def read_block(self, block: Held) -> None:
        """Read a block on its own stream, and on all others that use it."""
        if self.used + block.nbytes * (1 + len(block.users)) > ROOM:
            self.check()
        if block.stream is None:  # no stream is left to read it in order
            self.cu.ok("cuCtxSynchronize_v2", 0)
            self.read(block.ptr, block.nbytes, block.value, 0)
            self.check()
            return
        self.read(block.ptr, block.nbytes, block.value, block.stream)
        for user in sorted(block.users):
            self.read(block.ptr, block.nbytes, block.value, user)

    def share(self, block: Held, user: int) -> None:
        """Make another stream wait for what the block's own stream has queued."""
        assert block.stream is not None
        self.cu.ok("cuEventRecord", self.event, block.stream)
        self.cu.ok("cuStreamWaitEvent", user, self.event, 0)

    def check(self) -> None:
        self.cu.ok("cuCtxSynchronize_v2", 0)
        for place, nbytes, value in self.expected:
            assert ctypes.string_at(place, nbytes) == bytes([value]) * nbytes, f"{nbytes} bytes are not all {value}"
        self.expected.clear()
        self.used = 0

    def close(self) -> None:
        self.cu.ok("cuCtxSynchronize_v2", 0)
        self.cu.ok("cuEventDestroy", self.event)
        self.cu.ok("cuMemFreeHost", self.host)


def no_races() -> None:
    if sim.race_count():
        raise AssertionError("\n".join(map(str, sim.races())))
