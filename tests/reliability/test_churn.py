"""Objects that come and go leave nothing behind in the process, to the byte: a service may run for months."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
from collections.abc import Callable

import pytest

import arena
from arena import OutOfMemoryError

from ..arena.conftest import MIB, MakeArena
from ..arena.conftest import make as make
from ..simulated.conftest import fresh
from ..simulated.cu import Cu

TIMES = 500
PER_THREAD = 2
FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class MallInfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in FIELDS.split())


def bytes_in_use() -> int:
    """Bytes that malloc has given out. Python's own objects are small, and not included."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = MallInfo
    found = mallinfo()
    return int(found.uordblks + found.hblkhd)


class Churn:
    """Each method is something that programs do again and again."""

    def __init__(self, pool: arena.Arena, cu: Cu) -> None:
        self.pool, self.cu = pool, cu
        self.context = cu.out("cuCtxGetCurrent")

    def threads(self) -> None:
        def work() -> None:
            self.cu.ok("cuCtxSetCurrent", self.context)
            self.pool.allocate(512, PER_THREAD).free()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    def streams(self) -> None:
        stream = self.cu.stream()
        self.pool.allocate(512, stream).free()
        self.cu.ok("cuStreamDestroy", stream)

    def arenas(self) -> None:
        with arena.Arena(cap="64MiB") as pool:
            pool.allocate(512).free()

    def scopes(self) -> None:
        with self.pool.scope("a scope", budget=MIB):
            self.pool.allocate(512).free()

    def failures(self) -> None:
        with contextlib.suppress(OutOfMemoryError):
            self.pool.allocate(1 << 40)

    def blocks(self) -> None:
        buffers = [self.pool.allocate(1000 * i) for i in range(30)]
        for buffer in (*buffers[::2], *buffers[1::2]):
            buffer.free()

    def memory(self) -> None:
        self.pool.reserve("32MiB")
        self.pool.allocate(8 * MIB).free()
        self.pool.set_cap("16MiB")
        self.pool.set_cap("64MiB")
        self.pool.trim(compact=True)

    def looks(self) -> None:
        self.pool.snapshot()
        self.pool.stats()
        self.pool.metrics()


@pytest.fixture
def cu() -> Cu:
    fresh(races=False)  # the checker's history would be counted
    driver = Cu()
    driver.start()
    return driver


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="this C library does not count what it gave")
@pytest.mark.parametrize("what", [name for name in vars(Churn) if name[0] != "_"])
def test_objects_that_come_and_go_leave_nothing_in_the_process(make: MakeArena, cu: Cu, what: str) -> None:
    pool = make(cap="64MiB")
    churn: Callable[[], None] = getattr(Churn(pool, cu), what)
    grown = []
    for _ in range(5):  # the first is a warm-up; in the others, another thread may be doing something
        gc.collect()
        before = bytes_in_use(), sys.getallocatedblocks()
        for _ in range(TIMES):
            churn()
        gc.collect()
        grown.append((bytes_in_use() - before[0], sys.getallocatedblocks() - before[1]))
    assert min(size for size, _ in grown[1:]) < 4 * TIMES, grown  # bytes
    assert min(objects for _, objects in grown[1:]) < TIMES / 2, grown
    pool.validate()
