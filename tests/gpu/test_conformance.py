"""What the arena promises."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from functools import partial

import pytest

from arena import OutOfMemoryError, UsageError

from ..simulated.cu import SUCCESS
from ..threads import run_together
from .conftest import KINDS, MIB, Gpu, check


def test_the_device_is_described(gpu: Gpu) -> None:
    info = gpu.driver.devices()[0]
    assert 0 < info.free <= info.total == gpu.total
    assert info.virtual_memory == (info.granularity > 0)
    assert info.granularity == gpu.granule
    assert info.granularity & (info.granularity - 1) == 0
    assert gpu.arena(cap="64MiB").is_simulated == gpu.driver.is_simulated


@KINDS
def test_blocks_hold_what_is_written_and_nothing_else(gpu: Gpu, vmm: bool) -> None:
    pool = gpu.arena(cap="128MiB", vmm=vmm)
    buffers = [pool.allocate(size) for size in (1, 511, 4096, MIB + 1, 7 * MIB, 100) * 2]
    for value, buffer in enumerate(buffers, 1):
        gpu.fill(buffer.ptr, value, buffer.nbytes)
    assert all(gpu.holds(buffer.ptr, value, buffer.nbytes) for value, buffer in enumerate(buffers, 1))
    assert all(buffer.ptr % 512 == 0 for buffer in buffers)
    check(pool)


def test_data_survives_rebacking_bit_for_bit(gpu: Gpu) -> None:
    gpu.needs_virtual_memory()
    granule = gpu.granule
    pool = gpu.arena(cap=32 * granule, growth=32 * granule, compact=True)
    streams = [gpu.stream(), gpu.stream()]
    buffers = [pool.allocate(granule, streams[i % 2]) for i in range(8)]
    for i, buffer in enumerate(buffers):
        gpu.fill(buffer.ptr, i + 1, buffer.nbytes, streams[i % 2])
    for buffer in buffers[1::2]:
        buffer.free()
    kept = dict(enumerate(buffers[::2]))
    large = pool.allocate(28 * granule, streams[0])
    gpu.fill(large.ptr, 99, large.nbytes, streams[0])
    assert pool.stats().rebacked > 0
    assert gpu.holds(large.ptr, 99, large.nbytes, streams[0])
    assert all(gpu.holds(buffer.ptr, 2 * i + 1, buffer.nbytes) for i, buffer in kept.items())
    check(pool)


@KINDS
def test_the_cap_is_what_the_driver_counts(gpu: Gpu, vmm: bool) -> None:
    """May fail on a device that others use too, because of what they do."""
    pool = gpu.arena(cap="128MiB", growth="32MiB", vmm=vmm)
    gpu.fill(pool.allocate(512).ptr, 1, 512)  # what the driver sets up on first use is not counted
    pool.trim()
    before = gpu.free()
    held = []
    with contextlib.suppress(OutOfMemoryError):
        while len(held) < 100:
            held.append(pool.allocate(5 * MIB))
    assert 16 <= len(held) <= 25
    taken = before - gpu.free()
    assert taken == check(pool).reserved <= 128 * MIB
    held.clear()
    pool.trim()
    assert gpu.free() == before
    assert check(pool).reserved == 0


def test_headroom_is_left_to_others(gpu: Gpu) -> None:
    pool = gpu.arena(headroom=gpu.free() - 64 * MIB)
    with pytest.raises(OutOfMemoryError, match="headroom kept"):
        pool.allocate(256 * MIB)
    pool.allocate(16 * MIB).free()
    check(pool)


def test_the_verdicts_of_failed_requests_and_the_largest_that_passes(gpu: Gpu) -> None:
    pool = gpu.arena(cap="64MiB")
    held = pool.allocate(40 * MIB)
    with pytest.raises(OutOfMemoryError, match="cap reached") as caught:
        pool.allocate(30 * MIB)
    assert pool.allocate(caught.value.largest).nbytes == caught.value.largest
    with pool.scope("small", budget="1MiB"), pytest.raises(OutOfMemoryError, match="budget of scope small reached"):
        pool.allocate(2 * MIB)
    with pytest.raises(UsageError, match="more than the device's"):
        pool.set_cap(gpu.total + 1)
    held.free()


@KINDS
def test_memory_goes_from_stream_to_stream_behind_the_work_on_it(gpu: Gpu, vmm: bool) -> None:
    pool = gpu.arena(cap="32MiB", vmm=vmm)
    one, two = gpu.stream(), gpu.stream()
    for turn in range(20):
        first = pool.allocate(24 * MIB, one)
        gpu.hold(one, 0.005)
        for value in (turn, turn + 1, turn + 2):
            gpu.fill(first.ptr, value, first.nbytes, one)
        first.free()
        second = pool.allocate(24 * MIB, two)
        gpu.fill(second.ptr, 200, second.nbytes, two)
        assert gpu.holds(second.ptr, 200, second.nbytes, two)
        second.free()
    check(pool)


def test_a_recorded_stream_is_waited_for(gpu: Gpu) -> None:
    pool = gpu.arena(cap="32MiB")
    one, two = gpu.stream(), gpu.stream()
    buffer = pool.allocate(24 * MIB, one)
    gpu.fill(buffer.ptr, 0, buffer.nbytes, one)
    gpu.cu.ok("cuStreamSynchronize", one)
    gpu.hold(two, 0.1)
    for value in range(1, 20):
        gpu.fill(buffer.ptr, value, buffer.nbytes, two)
    buffer.record_stream(two)
    buffer.free()
    again = pool.allocate(24 * MIB, one)
    gpu.fill(again.ptr, 100, again.nbytes, one)
    gpu.cu.ok("cuStreamSynchronize", two)
    assert gpu.holds(again.ptr, 100, again.nbytes, one)


def test_threads_share_an_arena_and_no_memory(gpu: Gpu) -> None:
    pool = gpu.arena(cap="64MiB", compact=False)

    def work(value: int) -> None:
        gpu.cu.start()
        for _ in range(50):
            with pool.allocate(MIB, 2) as buffer:  # each thread's own default stream
                gpu.fill(buffer.ptr, value, buffer.nbytes, 2)
                assert gpu.holds(buffer.ptr, value, buffer.nbytes, 2)
        gpu.cu.ok("cuDevicePrimaryCtxRelease", 0)

    run_together(*[partial(work, value) for value in (1, 2, 3, 4)])
    check(pool)


@KINDS
def test_a_capture_gets_memory_and_its_graph_runs(gpu: Gpu, vmm: bool) -> None:
    pool = gpu.arena(cap="64MiB", growth="4MiB", vmm=vmm)
    stream, other = gpu.stream(), gpu.stream()
    pool.allocate(512, stream).free()
    gpu.cu.ok("cuStreamBeginCapture", stream, 0)
    graph = ctypes.c_uint64()
    try:
        buffer = pool.allocate(20 * MIB, stream)
        gpu.fill(buffer.ptr, 7, buffer.nbytes, stream)
        pool.allocate(5 * MIB, other).free()
        pool.trim()
    finally:
        ended = gpu.cu.cuStreamEndCapture(stream, ctypes.byref(graph))
    assert ended == SUCCESS
    runnable = gpu.cu.out("cuGraphInstantiateWithFlags", graph.value, 0)
    gpu.cu.ok("cuGraphLaunch", runnable, stream)
    assert gpu.holds(buffer.ptr, 7, buffer.nbytes, stream)
    gpu.cu.ok("cuGraphExecDestroy", runnable)
    gpu.cu.ok("cuGraphDestroy", graph.value)
    check(pool)


def test_memory_of_the_arena_cannot_be_exported(gpu: Gpu) -> None:
    gpu.needs_virtual_memory()
    pool = gpu.arena(cap="64MiB")
    buffer = pool.allocate(2 * MIB)
    handle = gpu.cu.out("cuMemRetainAllocationHandle", buffer.ptr)
    shared = ctypes.c_uint64()
    assert gpu.cu.cuMemExportToShareableHandle(ctypes.byref(shared), handle, 1, 0) != SUCCESS
    gpu.cu.ok("cuMemRelease", handle)


def test_cupys_arrays_get_their_memory_from_the_arena(gpu: Gpu) -> None:
    cupy = pytest.importorskip("cupy")
    pool = gpu.arena(cap="64MiB")
    with cupy.cuda.using_allocator(pool.malloc):
        array = cupy.empty(MIB, dtype="u1")
        gpu.fill(array.data.ptr, 3, array.nbytes)
        assert gpu.holds(array.data.ptr, 3, array.nbytes)
        assert check(pool).requested == MIB
        if not gpu.driver.is_simulated:  # where kernels run
            assert int((array.astype("i8") + 1).sum()) == 4 * MIB
        del array
        gc.collect()
        assert check(pool).live == 0
