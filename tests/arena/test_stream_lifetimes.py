"""Streams that end: their handles are not used again, their memory is waited for, their objects are released."""

from __future__ import annotations

import ctypes
import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import arena
from arena import OutOfMemoryError, UsageError, sim

from ..programs import run
from ..simulated.conftest import fresh
from ..simulated.cu import Cu
from .conftest import MIB, MakeArena, Work, check
from .streams import both_kinds, destroy_last, new_stream, number_of

virtual_and_plain = pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
SLOW = 20_000  # microseconds per operation


def fail(pool: arena.Arena) -> None:
    with pytest.raises(OutOfMemoryError):
        pool.allocate(100 * MIB)


CALLS: dict[str, Callable[[arena.Arena], object]] = {
    "allocate": lambda pool: pool.allocate(3 * MIB).free(),
    "allocate at the cap": lambda pool: pool.allocate(12 * MIB).free(),
    "trim": lambda pool: pool.trim(),
    "compact": lambda pool: pool.trim(compact=True) if pool.vmm else None,
    "snapshot": lambda pool: pool.snapshot(),
    "report": lambda pool: str(pool.report()),
    "fail": fail,
    "reserve": lambda pool: pool.reserve("8MiB"),
    "set_cap": lambda pool: pool.set_cap("4MiB"),
    "close": lambda pool: pool.close(),
}


@both_kinds
@virtual_and_plain
@pytest.mark.parametrize("delay", [0, 300], ids=["idle", "at work"])
@pytest.mark.parametrize("call", CALLS)
def test_a_destroyed_stream_is_never_passed_to_the_driver(
    make: MakeArena, cu: Cu, work: Work, kind: str, vmm: bool, delay: int, call: str
) -> None:
    sim.configure(reuse=False, delay=delay)
    pool = make(cap="16MiB", growth="2MiB", vmm=vmm, compact=True)
    streams = [new_stream(cu, kind) for _ in range(3)]
    before, after, live = (pool.allocate(4 * MIB - i * 512, stream) for i, stream in enumerate(streams))
    for i, buffer in enumerate((before, after, live)):
        work.fill(buffer, i + 1, number_of(streams[i]))
    before.free()
    while streams:
        destroy_last(cu, streams)
    after.free()
    if "cap" in call:
        live.free()
    CALLS[call](pool)
    if call != "close":
        pool.allocate(2 * MIB, cu.stream()).free()
        pool.trim()
    cu.ok("cuCtxSynchronize_v2", 0)
    live.free()
    assert [found for found in sim.findings() if found.kind != "race"] == []


@both_kinds
@virtual_and_plain
@pytest.mark.parametrize("reuse", [False, True], ids=["new numbers", "numbers reused"])
@pytest.mark.parametrize("seed", range(3))
def test_random_programs_with_short_lived_streams_keep_their_bytes(
    make: MakeArena, cu: Cu, work: Work, kind: str, vmm: bool, reuse: bool, seed: int
) -> None:
    chance = random.Random(seed)
    sim.configure(reuse=reuse, delay=200, seed=seed + 1)
    pool = make(cap="24MiB", growth="4MiB", vmm=vmm, compact=True)
    streams: list[Any] = []
    live: list[tuple[arena.Buffer, int]] = []
    for step in range(300):
        if not streams or (len(streams) < 5 and chance.random() < 0.2):
            streams.append(new_stream(cu, kind))
        chance.shuffle(streams)
        action = chance.random()
        if action < 0.5:
            size = chance.choice([512, 40_000, MIB, MIB, 3 * MIB])
            try:
                buffer = pool.allocate(size, streams[0])
            except OutOfMemoryError:
                live.clear()
                continue
            value = chance.randrange(1, 256)
            work.fill(buffer, value, number_of(streams[0]))
            live.append((buffer, value))
        elif action < 0.8 and live:
            live.pop(chance.randrange(len(live)))
        elif action < 0.92:
            destroy_last(cu, streams)
        elif action < 0.96:
            chance.choice([pool.trim, pool.snapshot, lambda: pool.trim(compact=True) if vmm else None])()
        if step % 60 == 0:
            cu.ok("cuCtxSynchronize_v2", 0)
            assert all(cu.read(b.ptr, b.nbytes) == bytes([value]) * b.nbytes for b, value in live)
    cu.ok("cuCtxSynchronize_v2", 0)
    live.clear()
    check(pool)


def test_a_stream_object_is_kept_while_its_memory_is_pending_and_no_longer(make: MakeArena, cu: Cu, work: Work) -> None:
    pool, stream = make(cap="64MiB", growth="2MiB"), cu.owned_stream()
    number, known = stream.ptr, weakref.ref(stream)
    with sim.temporarily(delay=300_000):
        buffer = pool.allocate(4 * MIB, stream)
        work.fill(buffer, 1, number)
        del stream
        pool.trim()
        assert known() is not None  # there is a live block
        buffer.free()
        pool.trim()
        assert known() is not None  # there is work in flight
        assert check(pool).pending == 4 * MIB
    cu.ok("cuCtxSynchronize_v2", 0)
    pool.trim()
    assert known() is None
    assert check(pool).reserved == 0


def test_stream_objects_are_released_when_the_arena_is_closed(make: MakeArena, cu: Cu) -> None:
    pool, stream = make(cap="64MiB"), cu.owned_stream()
    known = weakref.ref(stream)
    pool.allocate(MIB, stream).free()
    del stream
    pool.close()
    assert known() is None


def test_the_objects_of_many_streams_are_not_all_kept(make: MakeArena, cu: Cu) -> None:
    pool, known = make(cap="64MiB", growth="2MiB"), []
    for _ in range(1000):
        stream = cu.owned_stream()
        known.append(weakref.ref(stream))
        pool.allocate(512, stream).free()
        del stream
    assert sum(ref() is not None for ref in known) < 300
    pool.trim()
    assert all(ref() is None for ref in known)


def test_a_stream_object_that_uses_the_arena_in_its_finalizer_does_not_deadlock(make: MakeArena, cu: Cu) -> None:
    """A stream object's finalizer belongs to the program, and may call the arena."""
    pool = make(cap="64MiB", growth="2MiB")
    seen: list[int] = []

    class Stream:
        def __init__(self) -> None:
            self.ptr = cu.stream()

        def __del__(self) -> None:
            seen.append(pool.stats().blocks)
            pool.allocate(512).free()
            cu.ok("cuStreamDestroy", self.ptr)

    pool.allocate(MIB, Stream()).free()
    pool.trim()
    assert seen == [0]
    check(pool)


CUPY = """
import ctypes, gc, weakref
import cupy
from cupy_backends.cuda import stream as backend
import arena
from arena import sim
from tests.simulated.cu import Cu, MIB

cu = Cu()
cu.start()
sim.configure(reuse=False, delay=100_000)

class Stream(cupy.cuda.Stream):  # one without a runtime
    def __new__(cls): return object.__new__(cls)
    def __init__(self): self.ptr, self.device_id, self.null = cu.stream(), 0, False
    def __del__(self): cu.ok("cuStreamDestroy", self.ptr)

current = []
cupy.cuda.get_current_stream = lambda device=-1: current[-1]
new = ctypes.pythonapi.PyCapsule_New
new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
ask = ctypes.PYFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int)(lambda device: current[-1].ptr)
signature = b"intptr_t (int)"
backend.__pyx_capi__["get_stream_ptr"] = new(ctypes.cast(ask, ctypes.c_void_p), signature, None)

def use(stream):
    current[:] = [stream]

pool = arena.Arena(cap="64MiB", growth="2MiB")
cupy.cuda.set_allocator(pool.malloc)
"""


def test_cupys_streams_are_kept_while_they_are_needed() -> None:
    code = """
stream = Stream()
known, number = weakref.ref(stream), stream.ptr
use(stream)
for _ in range(3):  # slowly, and quickly
    array = cupy.empty(4 * MIB, dtype="u1")
    cu.ok("cuMemsetD8Async", array.data.ptr, 1, array.nbytes, number)
    del array
del stream
current.clear()
pool.trim()
print(known() is not None, pool.stats().pending // MIB)
cu.ok("cuCtxSynchronize_v2", 0)
pool.trim()
print(known() is None, pool.stats().reserved, sim.findings())
"""
    done = run(CUPY + code, ARENA_DRIVER="sim")
    assert (done.stdout, done.stderr) == ("True 4\nTrue 0 []\n", "")


def test_cupys_external_streams_are_borrowed() -> None:
    code = """
stream = cupy.cuda.ExternalStream(cu.stream(), 0)
known, number = weakref.ref(stream), stream.ptr
use(stream)
for _ in range(3):
    array = cupy.empty(4 * MIB, dtype="u1")
    cu.ok("cuMemsetD8Async", array.data.ptr, 1, array.nbytes, number)
    del array
del stream
current.clear()
gc.collect()
print(known() is None)
cu.ok("cuStreamDestroy", number)
use(Stream())
for _ in range(3):
    array = cupy.empty(64 * MIB, dtype="u1")
    cu.ok("cuMemsetD8Async", array.data.ptr, 2, array.nbytes, current[0].ptr)
    del array
pool.trim()
cu.ok("cuCtxSynchronize_v2", 0)
pool.trim()
print(pool.stats().reserved, sim.findings())
"""
    done = run(CUPY + code, ARENA_DRIVER="sim", CUDASIM_RACES="1")
    assert (done.stdout, done.stderr) == ("True\n0 []\n", "")


@both_kinds
@virtual_and_plain
@pytest.mark.parametrize("size", [512, 40 * 1024, 4 * MIB], ids=["tiny", "small", "all of it"])
def test_a_new_stream_with_a_reused_number_waits_for_the_old_ones_memory(
    make: MakeArena, cu: Cu, work: Work, kind: str, vmm: bool, size: int
) -> None:
    pool = make(cap="4MiB", growth="2MiB", vmm=vmm)
    rest = pool.allocate(4 * MIB - size) if size < 4 * MIB else None
    streams: list[Any] = []
    for _ in range(5):
        streams.append(new_stream(cu, kind))
        for _ in range(20):  # so that the stream's cache keeps it
            pool.allocate(size, streams[0]).free()
        with sim.temporarily(delay=SLOW):
            old = pool.allocate(size, streams[0])
            work.fill(old, 1, number_of(streams[0]))
            old.free()
            before = destroy_last(cu, streams)
            streams.append(new_stream(cu, kind))
            if kind == "number":
                assert streams[0] == before
            new = pool.allocate(size, streams[0])
            work.fill(new, 2, number_of(streams[0]))
        assert work.holds(new, 2, number_of(streams[0]))
        cu.ok("cuCtxSynchronize_v2", 0)
        assert work.holds(new, 2)
        new.free()
        destroy_last(cu, streams)
    assert rest is None or rest.nbytes > 0
    assert sim.races() == []


@both_kinds
def test_a_block_freed_after_its_streams_number_was_reused_is_waited_for(
    make: MakeArena, cu: Cu, work: Work, kind: str
) -> None:
    pool = make(cap="4MiB", growth="2MiB")
    streams = [new_stream(cu, kind)]
    with sim.temporarily(delay=SLOW):
        old = pool.allocate(4 * MIB, streams[0])
        work.fill(old, 1, number_of(streams[0]))
        destroy_last(cu, streams)
        streams.append(new_stream(cu, kind))
        with pytest.raises(OutOfMemoryError):
            pool.allocate(512, streams[0])  # so that the arena knows the new one
        old.free()
        new = pool.allocate(4 * MIB, streams[0])
        work.fill(new, 2, number_of(streams[0]))
    cu.ok("cuCtxSynchronize_v2", 0)
    assert work.holds(new, 2, number_of(streams[0]))


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The driver, an arena on the current device 0, and the primary context of device 1."""
    monkeypatch.setattr(arena._core, "default_driver", lambda: arena.Driver.open("sim"))
    fresh(devices=2)
    cu = Cu()
    second = cu.start(1)
    cu.start(0)
    pool = arena.Arena(cap="4MiB", growth="2MiB")
    yield cu, pool, second
    cu.ok("cuCtxSynchronize_v2", 0)
    pool.close()
    found = sim.races()
    fresh()
    assert found == []


@both_kinds
@pytest.mark.parametrize("then", ["allocate", "trim"])
def test_work_on_a_recorded_stream_of_another_device_is_waited_for(two_devices: Any, kind: str, then: str) -> None:
    cu, pool, second = two_devices
    first, stream = cu.out("cuCtxGetCurrent"), cu.stream()
    cu.ok("cuCtxSetCurrent", second)
    there = cu.alloc(4 * MIB)
    cu.ok("cuMemsetD8", there, 7, 4 * MIB)
    cu.ok("cuCtxSynchronize_v2", 0)
    other = new_stream(cu, kind)
    cu.ok("cuCtxSetCurrent", first)
    for round_ in range(3):
        old = pool.allocate(4 * MIB, stream)
        cu.ok("cuStreamSynchronize", stream)
        with sim.temporarily(delay=50_000):
            cu.ok("cuMemcpyPeerAsync", old.ptr, first, there, second, 4 * MIB, number_of(other))
            old.record_stream(other)
            old.free()
            if then == "trim":
                pool.trim()
            new = pool.allocate(4 * MIB, stream)
            cu.ok("cuMemsetD8Async", new.ptr, round_, new.nbytes, stream)
        cu.ok("cuStreamSynchronize", number_of(other))
        cu.ok("cuStreamSynchronize", stream)
        assert cu.read(new.ptr, new.nbytes) == bytes([round_]) * new.nbytes
        new.free()
    cu.ok("cuCtxSetCurrent", second)
    cu.ok("cuMemFree", there)
    if kind == "number":
        cu.ok("cuStreamDestroy", other)
    cu.ok("cuCtxSetCurrent", first)


@both_kinds
def test_a_stream_of_another_context_on_the_same_device_is_refused(
    make: MakeArena, cu: Cu, work: Work, kind: str
) -> None:
    pool, context = make(cap="4MiB"), cu.out("cuCtxGetCurrent")
    second = ctypes.c_uint64()
    cu.ok("cuCtxCreate", ctypes.byref(second), 0, 0)
    stream = new_stream(cu, kind)
    cu.ok("cuCtxSetCurrent", context)
    buffer = pool.allocate(4 * MIB)
    with pytest.raises(UsageError, match="belongs to a context that is not its device's primary context"):
        buffer.record_stream(stream)
    with pytest.raises(UsageError, match="belongs to a context that is not its device's primary context"):
        pool.allocate(512, stream)
    work.fill(buffer, 3)
    assert work.holds(buffer, 3)
    buffer.free()
    streams, stream = [stream], None
    destroy_last(cu, streams)
    gc.collect()
    cu.ok("cuCtxDestroy", second.value)
    check(pool)
