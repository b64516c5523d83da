"""Re-backing: live data is moved under its pointers, only when that is allowed, and survives."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import sys
import threading
import time

import pytest

import arena
from arena import OutOfMemoryError, UsageError, sim

from ..simulated.cu import Cu
from .conftest import MIB, MakeArena, Work, check

GRANULE = 2 * MIB


@pytest.mark.parametrize("queued", [False, True], ids=["idle", "work queued"])
def test_data_survives_rebacking_bit_for_bit(make: MakeArena, cu: Cu, work: Work, queued: bool) -> None:
    pool = make(cap="64MiB", growth="64MiB", compact=True)
    streams = [cu.stream(), cu.stream()]
    buffers = [pool.allocate(GRANULE, streams[i % 2]) for i in range(8)]
    before = [buffer.ptr for buffer in buffers]
    with sim.temporarily(delay=3000 if queued else 0):
        for i, buffer in enumerate(buffers):
            work.fill(buffer, i + 1, streams[i % 2])
        dropped = buffers[1::2]
        del buffers[1::2]
        while dropped:
            dropped.pop().free()
        big = pool.allocate(56 * MIB, streams[0])
    assert pool.stats().rebacked > 0
    assert [buffer.ptr for buffer in buffers] == before[::2]
    assert all(work.holds(buffer, 2 * i + 1) for i, buffer in enumerate(buffers))
    work.fill(big, 99, streams[0])
    assert all(work.holds(buffer, 2 * i + 1) for i, buffer in enumerate(buffers))
    check(pool)


def needs_rebacking(pool: arena.Arena) -> list[arena.Buffer]:
    """Leave every other granule of some handles live, so that only moving them makes room for a large request."""
    buffers = [pool.allocate(GRANULE) for _ in range(8)]
    for buffer in buffers[1::2]:
        buffer.free()
    return buffers[::2]


def test_rebacking_is_refused_when_it_is_turned_off(make: MakeArena) -> None:
    pool = make(cap="64MiB", compact=False)
    live = needs_rebacking(pool)
    with pytest.raises(OutOfMemoryError, match=r"Moving it would have freed 12,582,912 bytes") as caught:
        pool.allocate(56 * MIB)
    assert caught.value.verdict == "re-backing not allowed"
    assert len(live) == 4
    check(pool)


def test_rebacking_is_refused_while_another_thread_runs(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    live = needs_rebacking(pool)
    done = threading.Event()
    thread = threading.Thread(target=exec, args=("while not done.is_set(): pass", {"done": done}))
    thread.start()
    try:
        with pytest.raises(OutOfMemoryError, match="re-backing not allowed"):
            pool.allocate(56 * MIB)
    finally:
        done.set()
        thread.join()
    pool.allocate(56 * MIB).free()
    assert len(live) == 4


def test_rebacking_is_refused_where_there_is_no_gil(make: MakeArena, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make(cap="64MiB")
    live = needs_rebacking(pool)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(OutOfMemoryError, match="re-backing not allowed"):
        pool.allocate(56 * MIB)
    monkeypatch.undo()
    pool.allocate(56 * MIB).free()
    assert len(live) == 4


def test_rebacking_is_refused_while_an_unregistered_thread_runs(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    live = needs_rebacking(pool)
    done: list[bool] = []
    _thread.start_new_thread(exec, ("while not done: pass", {"done": done}))
    time.sleep(0.05)
    with pytest.raises(OutOfMemoryError, match="re-backing not allowed"):
        pool.allocate(56 * MIB)
    done.append(True)
    assert len(live) == 4


def test_rebacking_is_refused_while_a_stream_is_captured(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="64MiB", compact=True)
    owner = cu.owned_stream()
    stream = owner.ptr
    live = [*needs_rebacking(pool), pool.allocate(512, owner)]
    cu.ok("cuStreamBeginCapture", stream, 2)
    with pytest.raises(OutOfMemoryError, match="a stream is being captured"):
        pool.allocate(54 * MIB)
    assert pool.stats().rebacked == 0
    assert cu.cuStreamEndCapture(stream, ctypes.byref(ctypes.c_uint64())) == "CUDA_SUCCESS"
    assert len(live) == 5
    check(pool)


def test_pinned_memory_is_not_rebacked(make: MakeArena, work: Work) -> None:
    pool = make(cap="64MiB", growth="64MiB", compact=True, reserve="64MiB")
    live = needs_rebacking(pool)
    for buffer in live:
        pool.pin(buffer)
    pool.pin(live[0])
    assert check(pool).compactable == 0
    with pytest.raises(OutOfMemoryError, match=r"unpin\(\) what does not have to stay in place") as caught:
        pool.allocate(56 * MIB)
    assert caught.value.verdict == "pinned memory kept"
    for buffer in live[1:]:
        pool.unpin(buffer)
    pool.trim(compact=True)
    assert pool.stats().rebacked == 0  # all are in one handle, which is still pinned
    pool.unpin(live[0])
    assert pool.stats().compactable == 0
    pool.unpin(live[0].ptr)
    assert check(pool).compactable == 56 * MIB
    pool.allocate(56 * MIB).free()
    assert pool.stats().rebacked == 1


def test_memory_that_a_stream_still_uses_is_never_rebacked(make: MakeArena, cu: Cu) -> None:
    """Another thread frees buffers with work queued while a request waits for pending memory."""
    pool = make(cap="64MiB", growth="4MiB", compact=False)
    context = cu.out("cuCtxGetCurrent")
    warm, fence = pool.allocate(32 * MIB), pool.allocate(4 * MIB)
    warm.free()
    stop = threading.Event()

    def work() -> None:
        cu.ok("cuCtxSetCurrent", context)
        stream = cu.stream()
        while not stop.is_set():
            try:
                buffer = pool.allocate(4 * MIB, stream)
            except OutOfMemoryError:
                continue
            cu.ok("cuMemsetD8Async", buffer.ptr, 1, buffer.nbytes, stream)
            buffer.free()
            cu.ok("cuStreamSynchronize", stream)  # or its queue would grow forever if the work is slow

    with sim.temporarily(delay=2000):
        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(30):
            with contextlib.suppress(OutOfMemoryError):
                pool.allocate(60 * MIB).free()
        stop.set()
        thread.join()
    assert (pool.stats().rebacked, fence.nbytes) == (0, 4 * MIB)


def test_a_request_that_can_pass_does_not_wait_for_what_others_keep_freeing(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="64MiB", growth="4MiB", compact=False)
    context, own = cu.out("cuCtxGetCurrent"), cu.stream()
    warm, fence = pool.allocate(32 * MIB, own), pool.allocate(4 * MIB)
    begun, stop = threading.Event(), threading.Event()

    def work() -> None:
        """Queue more work than the device gets done."""
        cu.ok("cuCtxSetCurrent", context)
        stream, end = cu.stream(), time.monotonic() + 3
        while not stop.is_set() and time.monotonic() < end:
            with contextlib.suppress(OutOfMemoryError), pool.allocate(4 * MIB, stream) as buffer:
                for _ in range(4):
                    cu.ok("cuMemsetD8Async", buffer.ptr, 1, 512, stream)
            begun.set()
            time.sleep(0.001)

    with sim.temporarily(delay=2000):
        thread = threading.Thread(target=work)
        thread.start()
        begun.wait(20)
        cu.ok("cuMemsetD8Async", warm.ptr, 1, warm.nbytes, own)
        warm.free()
        assert pool.allocate(40 * MIB).nbytes == 40 * MIB  # which needs what `warm` was on
        assert thread.is_alive()
        stop.set()
        thread.join()
    assert fence.nbytes == 4 * MIB


def test_compaction_keeps_the_reserve(make: MakeArena) -> None:
    pool = make(cap="64MiB", growth="64MiB", reserve="32MiB", compact=True)
    buffer = pool.allocate(GRANULE)
    pool.trim(compact=True)
    assert (check(pool).reserved, buffer.nbytes) == (32 * MIB, GRANULE)


def test_largest_passes_without_moving_data(make: MakeArena) -> None:
    pool = make(cap="64MiB", growth="64MiB", reserve="64MiB", compact=False)
    live = needs_rebacking(pool)
    for size, verdict in ((56, "re-backing not allowed"), (58, "cap reached")):
        with pytest.raises(OutOfMemoryError, match=verdict) as caught:
            pool.allocate(size * MIB)
        assert caught.value.largest == pool.stats().largest == 50 * MIB  # all of it after the last block
    pool.allocate(50 * MIB).free()
    assert len(live) == 4


def test_a_pin_ends_with_its_buffer(make: MakeArena) -> None:
    pool = make(cap="64MiB", compact=True)
    buffer, other = pool.allocate(GRANULE), pool.allocate(GRANULE)
    pool.pin(buffer)
    buffer.free()
    assert check(pool).compactable > 0
    with pytest.raises(UsageError, match="this buffer was freed"):
        pool.pin(buffer)
    with pytest.raises(UsageError, match="is not the start of a live block"):
        pool.unpin(buffer.ptr)
    with pytest.raises(UsageError, match="is not pinned"):
        pool.unpin(other)
    with pytest.raises(UsageError, match="'x' is not memory of an arena"):
        pool.pin("x")


def test_memory_of_the_arena_cannot_be_exported_behind_its_back(make: MakeArena, cu: Cu) -> None:
    """So re-backing need not look for exported handles. pin() is for memory that others access in other ways."""
    pool = make(cap="64MiB")
    buffer = pool.allocate(GRANULE)
    handle = cu.out("cuMemRetainAllocationHandle", buffer.ptr)
    shared = ctypes.c_uint64()
    assert cu.cuMemExportToShareableHandle(ctypes.byref(shared), handle, 1, 0) != "CUDA_SUCCESS"
    cu.ok("cuMemRelease", handle)


def test_trimming_with_compaction_returns_every_free_granule(make: MakeArena, work: Work) -> None:
    pool = make(cap="256MiB")
    buffers = [pool.allocate(GRANULE) for _ in range(64)]
    for i, buffer in enumerate(buffers):
        work.fill(buffer, i + 1)
    kept = buffers[::16]
    del buffer, buffers
    pool.trim()
    assert check(pool).reserved > 4 * GRANULE
    pool.trim(compact=True)
    assert check(pool).reserved == 4 * GRANULE
    assert all(work.holds(buffer, 16 * i + 1) for i, buffer in enumerate(kept))
    off = make(cap="16MiB", compact=False)
    with pytest.raises(UsageError, match=r"would move live data\. Live data may not be moved: compact=False"):
        off.trim(compact=True)


def test_compaction_moves_only_live_data(make: MakeArena) -> None:
    """Not cached blocks: freed blocks of a size that recurs, kept while there is much room under the cap."""
    pool = make(cap="1GiB", growth="64MiB", compact=True)
    buffers = [pool.allocate(GRANULE) for _ in range(16)]
    kept = buffers[::8]
    buffers.clear()
    copies = sim.calls("cuMemcpyDtoH")
    pool.trim(compact=True)
    assert (check(pool).reserved, sim.calls("cuMemcpyDtoH") - copies) == (2 * GRANULE, len(kept))


@pytest.mark.parametrize("cause", ["request", "compaction"])
@pytest.mark.parametrize("function", ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemcpyHtoD"])
def test_data_lost_in_a_rebacking_is_an_error_and_nothing_else_is_lost(
    make: MakeArena, work: Work, function: str, cause: str
) -> None:
    pool = make(cap="64MiB", compact=True)
    live = needs_rebacking(pool)
    for value, buffer in enumerate(live, 1):
        work.fill(buffer, value)
    sim.fail(function, "CUDA_ERROR_UNKNOWN", nth=2, times=2)
    with pytest.raises(arena.ArenaError):
        pool.allocate(56 * MIB) if cause == "request" else pool.trim(compact=True)
    sim.clear_planned()
    check(pool)
    there = {piece.address for piece in pool.snapshot().live}
    kept = [(buffer, value) for value, buffer in enumerate(live, 1) if buffer.ptr in there]
    assert len(kept) >= len(live) - 1
    assert all(work.holds(buffer, value) for buffer, value in kept)
    kept.clear()
    del buffer
    while live:
        live.pop().free()
    check(pool)
    pool.allocate(60 * MIB).free()


def test_idle_handles_replace_what_the_device_does_not_give_again(make: MakeArena, work: Work) -> None:
    pool = make(cap="32MiB", compact=True)
    live, *others = [pool.allocate(GRANULE) for _ in range(4)]  # on one handle of two granules and two of one
    work.fill(live, 7)
    while others:
        others.pop().free()
    sim.fail("cuMemCreate", "CUDA_ERROR_OUT_OF_MEMORY", times=2)
    pool.trim(compact=True)
    sim.clear_planned()
    assert (pool.stats().rebacked, check(pool).reserved) == (1, GRANULE)
    assert work.holds(live, 7)


def test_a_handle_that_can_be_neither_released_nor_mapped_is_reported_as_lost(make: MakeArena) -> None:
    pool = make(cap="64MiB", growth="64MiB", reserve="64MiB", compact=True)
    live = needs_rebacking(pool)
    sim.fail("cuMemRelease", "CUDA_ERROR_UNKNOWN")
    sim.fail("cuMemMap", "CUDA_ERROR_UNKNOWN")
    with pytest.raises(arena.DriverError, match="cuMemRelease"):
        pool.allocate(56 * MIB)
    assert check(pool).live == 0
    with pytest.raises(UsageError, match="lost its data in a failed re-backing"):
        pool.pin(live[0])
    live.clear()
    pool.allocate(60 * MIB).free()
    check(pool)
