"""Two devices, where there are two: an arena for each, copies between them, and streams of the other one."""

from __future__ import annotations

import ctypes

import pytest

from ..simulated.cu import NOT_READY, READ_WRITE, SUCCESS, Access, Location
from .conftest import KINDS, MIB, Gpu, check

HOLD = 0.1
SIZE = 8 * MIB


@pytest.fixture
def second(gpu: Gpu) -> int:
    """The primary context of device 1; that of device 0 is current."""
    if gpu.devices < 2:
        pytest.skip("there is only one device")
    return gpu.start(1)


def holds(gpu: Gpu, context: int, address: int, value: int, size: int) -> bool:
    gpu.use(context)
    gpu.cu.ok("cuCtxSynchronize", context)
    held = gpu.cu.read(address, size) == bytes([value]) * size
    gpu.use(gpu.context)
    return held


@KINDS
def test_each_device_has_an_arena_of_its_own(gpu: Gpu, second: int, vmm: bool) -> None:
    pools = [gpu.arena(cap="64MiB", device=device, vmm=vmm) for device in (0, 1)]
    contexts = [gpu.context, second]
    buffers = [pool.allocate(SIZE) for pool in pools]
    for value, (context, buffer) in enumerate(zip(contexts, buffers, strict=True), 1):
        gpu.use(context)
        gpu.fill(buffer.ptr, value, SIZE)
    for value, (context, buffer) in enumerate(zip(contexts, buffers, strict=True), 1):
        assert holds(gpu, context, buffer.ptr, value, SIZE)
        ordinal = ctypes.c_int()
        gpu.cu.ok("cuPointerGetAttribute", ctypes.byref(ordinal), 9, buffer.ptr)
        assert ordinal.value == value - 1
    pools[0].close()
    buffers[0].free()
    assert holds(gpu, second, buffers[1].ptr, 2, SIZE)
    gpu.use(0)  # an arena needs no current context, and keeps the one that is current
    more = pools[1].allocate(SIZE)
    current = ctypes.c_uint64(1)
    gpu.cu.ok("cuCtxGetCurrent", ctypes.byref(current))
    assert current.value == 0
    assert check(pools[1]).blocks == 2
    more.free()
    gpu.use(gpu.context)


@KINDS
def test_memory_is_copied_between_two_arenas(gpu: Gpu, second: int, vmm: bool) -> None:
    """By cuMemcpyPeerAsync, which needs no peer access."""
    here, there = (gpu.arena(cap="64MiB", device=device, vmm=vmm) for device in (0, 1))
    stream = gpu.stream()
    for value in range(1, 6):
        source, target = here.allocate(SIZE, stream), there.allocate(SIZE)
        gpu.fill(source.ptr, value, SIZE, stream)
        gpu.cu.ok("cuMemcpyPeerAsync", target.ptr, second, source.ptr, gpu.context, SIZE, stream)
        gpu.cu.ok("cuStreamSynchronize", stream)
        assert holds(gpu, second, target.ptr, value, SIZE)
        source.free()
        target.free()
    for pool in (here, there):
        check(pool)


def test_a_stream_of_the_other_device_is_waited_for(gpu: Gpu, second: int) -> None:
    pool, target = gpu.arena(cap="32MiB"), gpu.arena(cap="32MiB", device=1).allocate(24 * MIB)
    here = gpu.stream()
    gpu.use(second)
    there = gpu.cu.stream()
    for value in range(1, 4):
        gpu.use(gpu.context)
        source = pool.allocate(24 * MIB, here)
        gpu.fill(source.ptr, value, source.nbytes, here)
        gpu.cu.ok("cuStreamSynchronize", here)
        gpu.use(second)
        gpu.hold(there, HOLD)
        gpu.cu.ok("cuMemcpyPeerAsync", target.ptr, second, source.ptr, gpu.context, source.nbytes, there)
        source.record_stream(there)
        source.free()
        gpu.use(gpu.context)
        again = pool.allocate(24 * MIB, here)
        gpu.fill(again.ptr, 100, again.nbytes, here)
        gpu.cu.ok("cuStreamSynchronize", here)
        assert holds(gpu, second, target.ptr, value, target.nbytes)
        again.free()
    gpu.use(second)
    gpu.cu.ok("cuStreamDestroy", there)
    gpu.use(gpu.context)
    check(pool)


def test_an_event_belongs_to_the_context_that_it_was_created_in(gpu: Gpu, second: int) -> None:
    """Once recorded in a stream of that context, any stream can wait for it, whichever context is current."""
    here = gpu.stream()
    gpu.use(second)
    there, event, address = gpu.cu.stream(), gpu.cu.event(), gpu.cu.alloc(MIB)
    gpu.hold(there, HOLD)
    gpu.fill(address, 3, MIB, there)
    gpu.use(gpu.context)
    gpu.cu.ok("cuEventRecord", event, there)
    assert gpu.cu.cuEventQuery(event) in (NOT_READY, SUCCESS)
    gpu.cu.ok("cuStreamWaitEvent", here, event, 0)
    gpu.cu.ok("cuStreamSynchronize", here)
    assert gpu.cu.cuEventQuery(event) == SUCCESS
    gpu.use(second)
    assert gpu.cu.read(address, MIB) == bytes([3]) * MIB
    gpu.cu.ok("cuEventDestroy", event)
    gpu.cu.ok("cuMemFree", address)
    gpu.cu.ok("cuStreamDestroy", there)
    gpu.use(gpu.context)


def test_access_set_for_a_peer_reaches_its_memory(gpu: Gpu, second: int) -> None:
    gpu.needs_virtual_memory()
    if not gpu.cu.out("cuDeviceCanAccessPeer", 1, 0, kind=ctypes.c_int):
        pytest.skip("device 1 cannot access the memory of device 0")
    cu, granule = gpu.cu, gpu.granule
    address, handle = cu.reserve(granule), cu.create(granule)
    cu.map(address, handle, granule)
    both = (Access * 2)(Access(Location(1, 0), READ_WRITE), Access(Location(1, 1), READ_WRITE))
    cu.ok("cuMemSetAccess", address, granule, both, 2)
    gpu.fill(address, 6, granule)
    gpu.synchronize()
    gpu.use(second)
    stream, target = cu.stream(), cu.alloc(granule)
    cu.ok("cuMemcpyDtoDAsync", target, address, granule, stream)
    assert gpu.holds(target, 6, granule, stream)
    cu.ok("cuMemFree", target)
    cu.ok("cuStreamDestroy", stream)
    gpu.use(gpu.context)
    cu.ok("cuMemUnmap", address, granule)
    cu.ok("cuMemRelease", handle)
    cu.ok("cuMemAddressFree", address, granule)
