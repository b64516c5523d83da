"""Things that happen at the worst moment: captures, signals, and work from threads that Python does not know."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

import arena
from arena import DriverError, OutOfMemoryError, sim

from ..programs import run
from ..simulated.conftest import fresh
from ..simulated.cu import Cu, OwnedStream
from .conftest import GIB, MIB, MakeArena, Work, check
from .native import compile_with_driver
from .streams import both_kinds, new_stream, number_of

virtual_and_plain = pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
GRANULE = 2 * MIB


class Capturing:
    """A thread that captures streams again and again. `results` holds how each capture ended."""

    def __init__(self, cu: Cu, streams: list[OwnedStream], mode: int) -> None:
        self.cu, self.streams, self.mode, self.context = cu, streams, mode, cu.out("cuCtxGetCurrent")
        self.results: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.cu.ok("cuCtxSetCurrent", self.context)
        while not self._over.is_set():
            for stream in self.streams:
                self.cu.ok("cuStreamBeginCapture", stream.ptr, self.mode)
                graph = ctypes.c_uint64()
                self.results.add(self.cu.cuStreamEndCapture(stream.ptr, ctypes.byref(graph)))
                if graph.value:
                    self.cu.ok("cuGraphDestroy", graph.value)

    def __enter__(self) -> Capturing:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()


def allocate_at_the_cap(pool: arena.Arena, streams: list[OwnedStream], size: int) -> set[type[Exception]]:
    """Allocate and free on all streams for a second; return the exceptions that occurred."""
    caught: set[type[Exception]] = set()
    end = time.monotonic() + 1
    while time.monotonic() < end:
        for stream in streams:
            try:
                pool.allocate(size, stream).free()
            except (OutOfMemoryError, DriverError) as error:
                caught.add(type(error))
                pool.release_graphs()  # the buffer may belong to a graph, which keeps its memory
        try:
            pool.trim()
        except DriverError as error:
            caught.add(type(error))
    return caught


any_capture = pytest.mark.parametrize("mode", [1, 2], ids=["thread local", "relaxed"])
moving_or_not = pytest.mark.parametrize("compact", [False, "auto"], ids=["may not move", "may move"])


@any_capture
@moving_or_not
@virtual_and_plain
def test_captures_that_begin_at_any_moment_do_no_lasting_harm(
    make: MakeArena, cu: Cu, work: Work, vmm: bool, mode: int, compact: bool | str
) -> None:
    """An event that was recorded into a capture is never queried again."""
    pool = make(cap="8MiB", growth="2MiB", vmm=vmm, compact=compact)
    streams = [cu.owned_stream() for _ in range(4)]
    for stream in streams:
        pool.allocate(512, stream).free()
    with Capturing(cu, streams[1:], mode) as capturing:
        allocate_at_the_cap(pool, streams, 8 * MIB - 512)
    assert "CUDA_SUCCESS" in capturing.results
    pool.release_graphs()
    for value in range(5):
        for stream in streams:
            with pool.allocate(8 * MIB, stream) as buffer:
                work.fill(buffer, value, stream.ptr)
                assert work.holds(buffer, value, stream.ptr)
    pool.trim()
    assert check(pool).reserved == 0


@any_capture
@moving_or_not
@virtual_and_plain
def test_captures_of_known_streams_survive_whenever_they_begin(
    make: MakeArena, cu: Cu, vmm: bool, mode: int, compact: bool | str
) -> None:
    pool = make(cap="8MiB", growth="2MiB", vmm=vmm, compact=compact)
    streams = [cu.owned_stream() for _ in range(4)]
    buffers = [pool.allocate(512, stream) for stream in streams]  # so that the arena knows them throughout
    with Capturing(cu, streams[2:], mode) as capturing:
        caught = allocate_at_the_cap(pool, streams[:2], 6 * MIB)
    buffers.clear()
    assert capturing.results == {"CUDA_SUCCESS"}
    assert DriverError not in caught


@pytest.mark.parametrize("compact", [True, "auto"])
def test_a_failing_request_does_not_spoil_a_capture_that_the_arena_does_not_know(
    make: MakeArena, cu: Cu, compact: bool | str
) -> None:
    pool, stream, over = make(cap="8MiB", growth="2MiB", compact=compact), cu.stream(), threading.Event()
    live = pool.allocate(4 * MIB)
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        cu.ok("cuStreamBeginCapture", stream, 1)
        error = None
        try:
            pool.allocate(6 * MIB)
        except arena.ArenaError as caught:
            error = caught.with_traceback(None)
        result = cu.cuStreamEndCapture(stream, ctypes.byref(ctypes.c_uint64()))
    finally:
        over.set()
        thread.join()
    assert (type(error), result) == (OutOfMemoryError, "CUDA_SUCCESS")
    live.free()


@pytest.mark.parametrize("mode", [1, 2], ids=["thread local", "relaxed"])
@pytest.mark.parametrize("work_in_between", [False, True], ids=["nothing", "allocations"])
def test_a_capture_in_the_same_thread_leaves_nothing_behind(
    make: MakeArena, cu: Cu, work: Work, mode: int, work_in_between: bool
) -> None:
    pool = make(cap="8MiB", growth="2MiB")
    captured, other = cu.owned_stream(), cu.owned_stream()
    for value in range(50):
        with pool.allocate(4 * MIB, captured) as buffer:
            work.fill(buffer, value, captured.ptr)
        cu.ok("cuStreamBeginCapture", captured.ptr, mode)
        if work_in_between:
            with contextlib.suppress(OutOfMemoryError), pool.allocate(8 * MIB, other) as buffer:
                work.fill(buffer, value, other.ptr)
            pool.trim()
            pool.snapshot()
        graph = ctypes.c_uint64()
        assert cu.cuStreamEndCapture(captured.ptr, ctypes.byref(graph)) == "CUDA_SUCCESS"
        with pool.allocate(8 * MIB, other) as buffer:
            work.fill(buffer, value, other.ptr)
            assert work.holds(buffer, value, other.ptr)
    pool.trim()
    assert check(pool).reserved == 0


class HandlerError(Exception):
    """Raised by a signal handler."""


@contextlib.contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise HandlerError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@both_kinds
@virtual_and_plain
def test_an_exception_from_a_signal_handler_while_a_request_waits_leaks_nothing(
    make: MakeArena, cu: Cu, work: Work, kind: str, vmm: bool
) -> None:
    pool = make(cap="16MiB", growth="2MiB", vmm=vmm, compact=True)
    streams = [new_stream(cu, kind) for _ in range(2)]
    interruptions = 0
    with sim.temporarily(delay=4000):
        for turn in range(50):
            pieces = [pool.allocate(GRANULE, streams[0]) for _ in range(8)]
            for piece in pieces:
                work.fill(piece, turn, number_of(streams[0]))
            kept = pieces.pop(turn % 8)
            while pieces:
                pieces.pop().free()
            buffer = None
            try:
                with interrupted_after(0.0005 + turn % 10 * 0.002):
                    buffer = pool.allocate(13 * MIB if vmm else 2 * MIB, streams[1])
                    time.sleep(0.03)
            except HandlerError:
                interruptions += 1
            assert pool.stats().blocks == 1 + (buffer is not None)
            assert work.holds(kept, turn, number_of(streams[0]))
            del buffer
            kept.free()
            assert check(pool).blocks == 0
    assert interruptions == 50
    cu.ok("cuCtxSynchronize_v2", 0)
    pool.allocate(16 * MIB if vmm else 2 * MIB, streams[0]).free()
    pool.trim()
    assert check(pool).reserved == 0


def test_ctrl_c_in_the_middle_of_allocating_and_freeing_leaks_nothing(make: MakeArena, cu: Cu, work: Work) -> None:
    pool, stream = make(cap="8MiB", growth="2MiB"), cu.owned_stream()
    with sim.temporarily(delay=100):
        for turn in range(50):
            with contextlib.suppress(HandlerError), interrupted_after(0.001 + turn * 0.0002):
                while True:
                    with pool.allocate(3 * MIB, stream) as one, pool.allocate(4 * MIB) as two:
                        work.fill(one, 1, stream.ptr)
                        work.fill(two, 1)
            assert pool.stats().blocks <= 2  # those that a traceback still references
            one = two = None  # type: ignore[assignment]
    cu.ok("cuCtxSynchronize_v2", 0)
    assert check(pool).blocks == 0
    pool.trim()
    assert check(pool).reserved == 0


NATIVE = """
#include <pthread.h>
#include <stddef.h>
typedef unsigned long long word;
extern int cuCtxSetCurrent(word);
extern int cuMemsetD8Async(word, unsigned char, size_t, word);
extern int cuStreamSynchronize(word);
static word context, address, stream;
static size_t size;
static volatile int stopped, failed;
static volatile long rounds;
static pthread_t thread;
static void* work(void* unused) {
  failed = cuCtxSetCurrent(context);
  while (!stopped && !failed) {
    failed = cuMemsetD8Async(address, (unsigned char)rounds, size, stream);
    if (!failed) failed = cuStreamSynchronize(stream);
    ++rounds;
  }
  return unused;
}
int start(word c, word a, size_t n, word s) {
  context = c, address = a, size = n, stream = s, stopped = failed = 0;
  return pthread_create(&thread, NULL, work, NULL);
}
int stop(void) {
  stopped = 1;
  pthread_join(thread, NULL);
  return failed;
}
long count(void) { return rounds; }
"""


@pytest.fixture
def native(tmp_path: Path) -> ctypes.CDLL:
    """A library whose thread launches work on the device without Python's knowledge."""
    library = ctypes.CDLL(str(compile_with_driver(NATIVE, tmp_path)))
    library.start.argtypes = [ctypes.c_uint64] * 2 + [ctypes.c_size_t, ctypes.c_uint64]
    library.count.restype = ctypes.c_long
    return library


def needs_rebacking(pool: arena.Arena) -> list[arena.Buffer]:
    """Leave one of two granules live, so that only moving them makes room for a large request."""
    buffers = [pool.allocate(GRANULE) for _ in range(8)]
    for buffer in buffers[1::2]:
        buffer.free()
    return buffers[::2]


def test_live_data_is_not_moved_while_a_native_thread_launches_work(
    make: MakeArena, cu: Cu, native: ctypes.CDLL
) -> None:
    pool, stream = make(cap="64MiB"), cu.stream()
    live = needs_rebacking(pool)
    cu.ok("cuCtxSynchronize_v2", 0)
    assert native.start(cu.out("cuCtxGetCurrent"), live[1].ptr, live[1].nbytes, stream) == 0
    try:
        for _ in range(20):
            before = native.count()
            with pytest.raises(OutOfMemoryError, match="re-backing not allowed"):
                pool.allocate(56 * MIB)
            with pytest.raises(arena.UsageError, match="another thread may launch work"):
                pool.trim(compact=True)
            while native.count() == before:
                time.sleep(0.001)
    finally:
        failed = native.stop()
    assert (failed, pool.stats().rebacked) == (0, 0)
    cu.ok("cuCtxSynchronize_v2", 0)
    pool.allocate(56 * MIB).free()  # now there is no such thread
    assert pool.stats().rebacked > 0
    assert cu.cuCtxSynchronize_v2(0) == "CUDA_SUCCESS"
    check(pool)


@pytest.mark.parametrize("libraries", ["import numpy", "import numpy; numpy.ones((500, 500)) @ numpy.ones((500, 500))"])
def test_threads_of_a_math_library_do_not_prevent_moving_live_data(libraries: str) -> None:
    code = f"""
{libraries}
import os
import arena
from tests.arena.test_bad_timing import MIB, needs_rebacking
pool = arena.Arena(cap="64MiB")
live = needs_rebacking(pool)
pool.allocate(56 * MIB).free()
print(len(os.listdir("/proc/self/task")) > 1, pool.stats().rebacked > 0)
"""
    done = run(code, ARENA_DRIVER="sim", OPENBLAS_NUM_THREADS="4")
    assert (done.stdout, done.stderr) == ("True True\n", "")


@pytest.fixture
def large_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cu]:
    """An 80 GiB device."""
    monkeypatch.setattr(arena._core, "default_driver", lambda: arena.Driver.open("sim"))
    fresh(memory="80GiB")
    cu = Cu()
    cu.start()
    yield cu
    fresh()


def test_two_hundred_arenas_with_small_caps_share_a_large_device(large_device: Cu) -> None:
    with contextlib.ExitStack() as stack:
        pools = [stack.enter_context(arena.Arena(cap="64MiB")) for _ in range(200)]
        buffers = [pool.allocate(MIB) for pool in pools]
        assert len({buffer.ptr for buffer in buffers}) == 200
        for buffer in buffers:
            buffer.free()


def test_a_cap_that_is_raised_far_above_its_first_value_can_be_used(large_device: Cu) -> None:
    with arena.Arena(cap="64MiB") as pool:
        first = pool.allocate(32 * MIB)
        large_device.ok("cuMemsetD8", first.ptr, 5, first.nbytes)
        with pytest.raises(OutOfMemoryError):
            pool.allocate(4 * GIB)
        pool.set_cap("40GiB")
        with pool.allocate(4 * GIB) as one, pool.allocate(30 * GIB) as two:
            large_device.ok("cuMemsetD8", one.ptr, 6, MIB)
            large_device.ok("cuMemsetD8", two.ptr + 30 * GIB - MIB, 7, MIB)
            large_device.ok("cuCtxSynchronize_v2", 0)
            assert large_device.read(one.ptr, 512) == bytes([6]) * 512
            assert large_device.read(two.ptr + 30 * GIB - 512, 512) == bytes([7]) * 512
        assert large_device.read(first.ptr, first.nbytes) == bytes([5]) * first.nbytes
        pool.validate()
        first.free()
        pool.trim()
        assert pool.stats().reserved == 0
