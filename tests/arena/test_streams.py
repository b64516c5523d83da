"""Streams: memory is reused at once on its own stream, behind a wait on others, and never during a capture."""

from __future__ import annotations

import ctypes
import threading

import pytest

from arena import OutOfMemoryError, sim

from ..programs import run
from ..simulated.cu import PER_THREAD, Cu
from .conftest import MIB, MakeArena, Work, check

GRANULE = 2 * MIB


def test_memory_is_reused_at_once_on_its_own_stream(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="8MiB")
    stream = cu.stream()
    first = pool.allocate(MIB, stream)
    where = first.ptr
    first.free()
    before = pool.stats().driver_calls
    assert pool.allocate(MIB, stream).ptr == where
    assert pool.stats().driver_calls == before


def test_memory_of_another_stream_is_reused_behind_a_wait(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="4MiB")
    one, two = cu.stream(), cu.stream()
    with sim.temporarily(delay=5000):
        first = pool.allocate(4 * MIB, one)
        work.fill(first, 1, one)
        first.free()
        second = pool.allocate(4 * MIB, two)
        work.fill(second, 2, two)
    assert pool.stats().waits == 1
    assert work.holds(second, 2, two)


def test_memory_of_a_destroyed_stream_is_not_lost(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="4MiB")
    stream = cu.stream()
    buffer = pool.allocate(4 * MIB, stream)
    work.fill(buffer, 1, stream)
    cu.ok("cuStreamDestroy", stream)
    buffer.free()
    other = cu.stream()
    work.fill(pool.allocate(4 * MIB, other), 2, other)
    cu.ok("cuCtxSynchronize_v2", 0)
    check(pool)


def test_memory_used_on_a_recorded_stream_waits_for_it(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="4MiB")
    one, two = cu.stream(), cu.stream()
    with sim.temporarily(delay=3000):
        first = pool.allocate(4 * MIB, one)
        work.cu.ok("cuStreamSynchronize", one)
        work.fill(first, 7, two)
        first.record_stream(two)
        first.free()
        second = pool.allocate(4 * MIB, one)
        work.fill(second, 8, one)
    assert work.holds(second, 8, one)


def test_handles_are_unmapped_only_when_their_streams_are_done(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="8MiB", growth="2MiB")
    stream = cu.stream()
    with sim.temporarily(delay=100_000):
        small = [pool.allocate(GRANULE, stream) for _ in range(4)]
        for buffer in small:
            work.fill(buffer, 1, stream)
        for buffer in small[:3]:
            buffer.free()
        assert check(pool).pending == 6 * MIB
        pool.trim()
        assert pool.stats().reserved == 8 * MIB
        cu.ok("cuStreamSynchronize", stream)
        pool.trim()
    assert check(pool).reserved == GRANULE


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread local", "relaxed"])
def test_a_capture_is_not_disturbed_by_allocating_and_freeing(make: MakeArena, cu: Cu, work: Work, mode: int) -> None:
    pool = make(cap="64MiB", growth="4MiB")
    stream, other = cu.stream(), cu.stream()
    warm, fence, foreign = pool.allocate(3 * MIB, stream), pool.allocate(512, stream), pool.allocate(40 * MIB, other)
    work.fill(foreign, 1, other)
    warm.free()
    foreign.free()
    cu.ok("cuStreamBeginCapture", stream, mode)
    with pool.allocate(3 * MIB, stream) as buffer:
        work.fill(buffer, 7, stream)
        with pytest.raises(OutOfMemoryError, match="before the capture begins") as caught:
            pool.allocate(30 * MIB, stream)  # there is as much that another stream freed
        assert caught.value.verdict == "a stream is being captured"
        pool.allocate(caught.value.largest, stream).free()  # new memory
        pool.trim()
        graph = ctypes.c_uint64()
        assert cu.cuStreamEndCapture(stream, ctypes.byref(graph)) == "CUDA_SUCCESS"
        launched = cu.out("cuGraphInstantiateWithFlags", graph.value, 0)
        cu.ok("cuGraphLaunch", launched, stream)
        assert work.holds(buffer, 7, stream)
    fence.free()
    pool.release_graphs()
    pool.allocate(60 * MIB, stream).free()
    check(pool)


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread local", "relaxed"])
def test_a_capture_is_not_disturbed_by_stats_and_snapshots(make: MakeArena, cu: Cu, work: Work, mode: int) -> None:
    pool = make(cap="64MiB", growth="2MiB")
    streams = [cu.stream(), cu.stream()]
    buffers = [pool.allocate(4 * MIB, stream) for stream in streams]
    for stream in streams:
        work.fill(buffers[0], 1, stream)
        buffers.pop(0).free()
    cu.ok("cuStreamBeginCapture", streams[0], mode)
    assert {piece.state for piece in pool.snapshot().pieces} == {"pending"}  # no query is made
    str(pool.report())
    assert check(pool).pending == pool.stats().reserved
    assert cu.cuStreamEndCapture(streams[0], ctypes.byref(ctypes.c_uint64())) == "CUDA_SUCCESS"


def test_a_capture_is_not_disturbed_when_many_streams_appear(make: MakeArena, cu: Cu) -> None:
    """After many streams were seen, the arena waits for the device from time to time, to forget those that are gone."""
    pool = make(cap="256MiB", growth="2MiB")
    gone, *streams = [cu.stream() for _ in range(101)]
    pool.allocate(512, gone).free()
    cu.ok("cuStreamDestroy", gone)
    for stream in streams[:50]:
        pool.allocate(512, stream).free()
    cu.ok("cuStreamBeginCapture", streams[0], 0)
    for stream in streams[50:]:
        pool.allocate(512, stream).free()
    assert cu.cuStreamEndCapture(streams[0], ctypes.byref(ctypes.c_uint64())) == "CUDA_SUCCESS"
    pool.allocate(512, streams[0]).free()
    check(pool)


@pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
@pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread local", "relaxed"])
def test_a_capture_gets_new_memory(make: MakeArena, cu: Cu, work: Work, mode: int, vmm: bool) -> None:
    pool = make(cap="64MiB", growth="4MiB", vmm=vmm)
    stream = cu.stream()
    pool.allocate(512, stream).free()  # so that the arena knows the stream
    cu.ok("cuStreamBeginCapture", stream, mode)
    buffer = pool.allocate(30 * MIB, stream)
    work.fill(buffer, 7, stream)
    graph = ctypes.c_uint64()
    assert cu.cuStreamEndCapture(stream, ctypes.byref(graph)) == "CUDA_SUCCESS"
    cu.ok("cuGraphLaunch", cu.out("cuGraphInstantiateWithFlags", graph.value, 0), stream)
    assert work.holds(buffer, 7, stream)
    check(pool)


def test_a_capture_of_another_threads_own_stream_is_not_invalidated(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="64MiB", growth="2MiB")
    context, gone = cu.out("cuCtxGetCurrent"), cu.stream()
    begun, over = threading.Event(), threading.Event()
    results: list[str] = []

    def capture() -> None:
        cu.ok("cuCtxSetCurrent", context)
        with pool.allocate(512, PER_THREAD):
            cu.ok("cuStreamBeginCapture", PER_THREAD, 2)
            begun.set()
            over.wait(20)
            results.append(cu.cuStreamEndCapture(PER_THREAD, ctypes.byref(ctypes.c_uint64())))

    buffer = pool.allocate(4 * MIB, gone)
    work.fill(buffer, 1, gone)
    buffer.free()
    cu.ok("cuStreamDestroy", gone)  # so that only the whole device knows when it is done
    thread = threading.Thread(target=capture)
    thread.start()
    begun.wait(20)
    reserved = pool.stats().reserved
    pool.trim()
    assert pool.stats().reserved == reserved
    over.set()
    thread.join()
    assert results == ["CUDA_SUCCESS"]
    pool.trim()
    assert pool.stats().reserved == 0


def test_a_capture_unknown_to_the_arena_survives_its_calls(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="32MiB", growth="4MiB")
    captured = cu.stream()
    cu.ok("cuStreamBeginCapture", captured, 0)
    buffers = [pool.allocate(4 * MIB) for _ in range(8)]
    buffers.clear()
    pool.trim()
    pool.allocate(20 * MIB).free()
    assert cu.cuStreamEndCapture(captured, ctypes.byref(ctypes.c_uint64())) == "CUDA_SUCCESS"


def test_many_live_streams_are_no_reason_to_wait_for_the_device(make: MakeArena, cu: Cu) -> None:
    """A capture that the arena does not know would not survive that."""
    pool, captured = make(cap="256MiB", growth="2MiB"), cu.stream()
    waits = sim.calls("cuCtxSynchronize")
    cu.ok("cuStreamBeginCapture", captured, 0)
    for _ in range(100):
        pool.allocate(512, cu.stream()).free()
    assert sim.calls("cuCtxSynchronize") == waits
    assert cu.cuStreamEndCapture(captured, ctypes.byref(ctypes.c_uint64())) == "CUDA_SUCCESS"
    check(pool)


def test_new_memory_has_no_last_user_to_wait_for(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="1GiB", growth="2MiB")
    one, two = cu.stream(), cu.stream()
    kept = pool.allocate(2 * MIB, one)
    pool.allocate(2 * MIB, one).free()  # all addresses above carry its mark now
    pool.trim()
    cu.ok("cuStreamBeginCapture", two, 0)
    pool.allocate(512, two).free()
    pool.allocate(100 * MIB, two).free()
    assert cu.cuStreamEndCapture(two, ctypes.byref(ctypes.c_uint64())) == "CUDA_SUCCESS"
    assert (pool.stats().waits, kept.nbytes) == (0, 2 * MIB)


def test_the_lock_is_not_held_during_a_wait_for_the_device() -> None:
    """A stream is gone, so the arena waits for the whole device; a function in it frees a buffer."""
    code = """
import ctypes
import time
import arena
from arena import sim
from tests.simulated.cu import Cu, MIB
sim.configure(delay=100_000)
cu = Cu()
cu.start()
pool = arena.Arena(cap="64MiB", growth="2MiB")
stream, gone = cu.stream(), cu.stream()
box = [pool.allocate(512, stream)]
buffer = pool.allocate(4 * MIB, gone)
cu.ok("cuMemsetD8Async", buffer.ptr, 1, buffer.nbytes, gone)
buffer.free()
cu.ok("cuStreamDestroy", gone)
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def host(data):
    box.clear()
cu.ok("cuLaunchHostFunc", stream, host, 0)
until = time.monotonic() + 20
while pool.stats().reserved >= 4 * MIB and time.monotonic() < until:
    pool.trim()  # waits for what is nearly done; on a busy machine that takes more than one
print(pool.stats().blocks, pool.stats().reserved // MIB < 4)
"""
    done = run(code, timeout=30, ARENA_DRIVER="sim")
    assert (done.stdout, done.stderr) == ("0 True\n", "")


def test_freeing_above_a_lowered_cap_does_not_wait(make: MakeArena, cu: Cu, work: Work) -> None:
    """The stream is gone, so only the whole device could be waited for. trim() does that, and free() does not."""
    pool, stream = make(cap="64MiB", growth="2MiB"), cu.stream()
    buffer = pool.allocate(4 * MIB, stream)
    pool.set_cap("2MiB")
    with sim.temporarily(delay=100_000):
        work.fill(buffer, 1, stream)
        cu.ok("cuStreamDestroy", stream)
        waits = sim.calls("cuCtxSynchronize")
        buffer.free()
        assert sim.calls("cuCtxSynchronize") == waits
        assert check(pool, highest_cap=64 * MIB).pending == 4 * MIB
        while pool.stats().pending:  # a busy machine needs longer than it waits
            pool.trim()
    assert check(pool, highest_cap=64 * MIB).reserved == 0


def test_many_short_lived_streams_and_threads_leave_nothing_behind(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="4GiB")  # room for each
    context = cu.out("cuCtxGetCurrent")

    def use_own() -> None:
        cu.ok("cuCtxSetCurrent", context)
        pool.allocate(512, PER_THREAD).free()

    def calls_of_a_miss() -> int:
        before = sim.calls("cuStreamIsCapturing")
        pool.reserve(pool.stats().reserved + 2 * MIB)
        pool.trim()
        return sim.calls("cuStreamIsCapturing") - before

    for _ in range(300):
        stream = cu.stream()
        pool.allocate(512, stream).free()
        cu.ok("cuStreamDestroy", stream)
        thread = threading.Thread(target=use_own)
        thread.start()
        thread.join()
    calls_of_a_miss()
    assert calls_of_a_miss() < 130
    check(pool)


def test_memory_passed_between_two_streams_needs_few_events(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="4MiB")
    streams = [cu.stream(), cu.stream()]
    for turn in range(200):
        pool.allocate(4 * MIB, streams[turn % 2]).free()
        cu.ok("cuStreamSynchronize", streams[turn % 2])
    assert pool.stats().waits == 0  # each is done before the other begins
    assert sim.census().events < 20


def test_streams_that_are_gone_are_forgotten(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="512MiB", growth="2MiB")

    def calls_of_a_miss() -> int:
        before = sim.calls("cuStreamIsCapturing")
        kept.append(pool.allocate(4 * MIB))
        return sim.calls("cuStreamIsCapturing") - before

    kept: list[object] = []
    calls_of_a_miss()
    for _ in range(20):
        stream = cu.stream()
        pool.allocate(512, stream).free()
        cu.ok("cuStreamDestroy", stream)
    calls_of_a_miss()
    assert calls_of_a_miss() <= 1


def test_memory_of_another_threads_own_stream_is_waited_for(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="4MiB")
    context, stream = cu.out("cuCtxGetCurrent"), cu.stream()

    def use() -> None:
        cu.ok("cuCtxSetCurrent", context)
        buffer = pool.allocate(4 * MIB, PER_THREAD)
        for _ in range(5):
            work.fill(buffer, 1, PER_THREAD)
        buffer.free()

    with sim.temporarily(delay=20_000):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        pool.trim()
        buffer = pool.allocate(4 * MIB, stream)
        work.fill(buffer, 2, stream)
    assert work.holds(buffer, 2, stream)


def test_a_cached_block_does_not_hide_a_later_free_beside_it(make: MakeArena, cu: Cu, work: Work) -> None:
    """Two blocks in one granule. The small one is freed first, but returned to the gaps last."""
    pool = make(cap="8MiB", growth="8MiB")
    one, two = cu.owned_stream(), cu.owned_stream()
    small = pool.allocate(512, one)
    for _ in range(5):  # a size that is worth caching
        small.free()
        small = pool.allocate(512, one)
    large, between = pool.allocate(MIB, one), pool.allocate(MIB - 512, one)
    apart, rest = pool.allocate(4 * MIB, one), pool.allocate(2 * MIB, one)
    with sim.temporarily(delay=30_000):
        work.fill(rest, 1, one.ptr)
        rest.free()
        rest = pool.allocate(2 * MIB, two)  # the first wait: from now on, frees are recorded
        small.free()
        apart.free()
        work.fill(large, 1, one.ptr)
        large.free()
        apart = pool.allocate(4 * MIB, two)  # waits for what was freed up to `apart`, and flushes the stream caches
        large = pool.allocate(MIB, two)
        work.fill(large, 2, two.ptr)
    assert pool.stats().waits == 3
    assert work.holds(large, 2, two.ptr)
    for buffer in (large, between, apart, rest):
        buffer.free()
