"""NVIDIA's cuda-bindings on the simulated driver: plain, virtual and stream-ordered memory.

Every call is the client's own: it looks functions up, converts arguments, and knows nothing of a simulation.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from cuda.bindings import driver as cu

from arena import sim

from ...findings import expect
from .client import (
    GIB,
    MIB,
    NON_BLOCKING,
    SLOW,
    Attribute,
    Code,
    Location,
    PointerAttribute,
    PoolAttribute,
    allow,
    device_location,
    end,
    host_view,
    new_pool,
    ok,
    pool_counts,
    properties,
    read,
    some_bytes,
    start,
)

# Plain memory


def test_bytes_go_to_the_device_and_come_back(context: Any) -> None:
    data = some_bytes(3 * MIB + 17)
    address = ok(cu.cuMemAlloc(len(data)))
    copy = ok(cu.cuMemAlloc(len(data)))
    assert sim.census().allocations == 2
    assert ok(cu.cuMemGetInfo()) == (8 * GIB - sim.used(), 8 * GIB)
    ok(cu.cuMemcpyHtoD(address, data, len(data)))
    ok(cu.cuMemcpyDtoD(copy, address, len(data)))
    assert read(copy, len(data)) == data
    assert read(int(copy) + 1000, 24) == data[1000:1024]
    assert [int(value) for value in ok(cu.cuMemGetAddressRange(int(copy) + 5))] == [int(copy), len(data)]
    for each in (address, copy):
        ok(cu.cuMemFree(each))
    assert cu.cuMemFree(address)[0] == Code.CUDA_ERROR_INVALID_VALUE
    assert ok(cu.cuMemGetInfo()) == (8 * GIB, 8 * GIB)


def test_an_allocation_beyond_the_device_fails(context: Any) -> None:
    assert cu.cuMemAlloc(8 * GIB + 1)[0] == Code.CUDA_ERROR_OUT_OF_MEMORY
    with sim.temporarily(other="7GiB"):
        assert ok(cu.cuMemGetInfo()) == (GIB, 8 * GIB)
        assert cu.cuMemAlloc(GIB + 1)[0] == Code.CUDA_ERROR_OUT_OF_MEMORY
        ok(cu.cuMemFree(ok(cu.cuMemAlloc(GIB))))


def test_memory_is_freed_with_any_context_current_or_none(contexts: tuple[Any, Any]) -> None:
    first, second = contexts
    data = ctypes.create_string_buffer(8192)
    pointers = [ok(cu.cuMemAlloc(4096)) for _ in range(2)]
    pinned = ok(cu.cuMemAllocHost(4096))
    ok(cu.cuMemHostRegister(ctypes.addressof(data), 8192, 0))
    busy = ok(cu.cuStreamCreate(NON_BLOCKING))
    with sim.temporarily(delay=SLOW):
        ok(cu.cuMemsetD8Async(pointers[0], 1, 4096, busy))
    ok(cu.cuCtxSetCurrent(second))
    ok(cu.cuMemFree(pointers[0]))  # waits for the work of the context that it belongs to
    ok(cu.cuCtxSetCurrent(cu.CUcontext(0)))
    ok(cu.cuMemFree(pointers[1]))
    ok(cu.cuMemFreeHost(pinned))
    ok(cu.cuMemHostUnregister(ctypes.addressof(data)))
    assert sim.census().allocations == 0
    assert cu.cuMemFreeHost(pinned)[0] == Code.CUDA_ERROR_INVALID_VALUE
    ok(cu.cuMemFree(0))
    ok(cu.cuMemFreeHost(0))
    assert cu.cuMemHostUnregister(0)[0] == Code.CUDA_ERROR_INVALID_VALUE
    ok(cu.cuStreamDestroy(busy))
    ok(cu.cuCtxSetCurrent(first))


@pytest.mark.parametrize("width", [1, 2, 4])
def test_fills_write_their_pattern(stream: Any, width: int) -> None:
    fill = {1: cu.cuMemsetD8, 2: cu.cuMemsetD16, 4: cu.cuMemsetD32}[width]
    fill_async = {1: cu.cuMemsetD8Async, 2: cu.cuMemsetD16Async, 4: cu.cuMemsetD32Async}[width]
    first, second = b"\x12\x34\x56\x78"[:width], b"\xab\xcd\xef\x01"[:width]
    address = ok(cu.cuMemAlloc(4096))
    ok(fill(address, int.from_bytes(first, "little"), 4096 // width))
    ok(cu.cuCtxSynchronize())  # the stream does not wait for the legacy stream, nor the host for a fill
    ok(fill_async(int(address) + 1024, int.from_bytes(second, "little"), 1024 // width, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert read(address, 4096) == first * (1024 // width) + second * (1024 // width) + first * (2048 // width)
    if width > 1:
        assert fill(int(address) + 1, 0, 1)[0] == Code.CUDA_ERROR_INVALID_VALUE
    ok(cu.cuMemFree(address))


def test_copies_with_pinned_memory_are_asynchronous(stream: Any) -> None:
    size = 2 * MIB
    data = some_bytes(size)
    source, target = ok(cu.cuMemHostAlloc(size, 0)), ok(cu.cuMemAllocHost(size))
    address = ok(cu.cuMemAlloc(size))
    host_view(source, size)[:] = data
    with sim.temporarily(delay=SLOW):
        ok(cu.cuMemcpyHtoDAsync(address, source, size, stream))
        ok(cu.cuMemcpyDtoHAsync(target, address, size, stream))
        assert cu.cuStreamQuery(stream)[0] == Code.CUDA_ERROR_NOT_READY
        ok(cu.cuStreamSynchronize(stream))
        ok(cu.cuStreamQuery(stream))
    assert bytes(host_view(target, size)) == data
    assert int(ok(cu.cuMemHostGetDevicePointer(target, 0))) == int(target)
    ok(cu.cuMemFree(address))
    for pointer in (source, target):
        ok(cu.cuMemFreeHost(pointer))


def test_an_asynchronous_copy_from_pageable_memory_has_read_it_when_it_returns(stream: Any) -> None:
    data = bytearray(some_bytes(4096))
    expected = bytes(data)
    address = ok(cu.cuMemAlloc(4096))
    with sim.temporarily(delay=SLOW):
        ok(cu.cuMemcpyHtoDAsync(address, data, 4096, stream))
        data[:] = bytes(4096)
        found = bytearray(4096)
        ok(cu.cuMemcpyDtoHAsync(found, address, 4096, stream))
    assert bytes(found) == expected
    ok(cu.cuMemFree(address))


def test_the_programs_own_memory_can_be_registered(stream: Any) -> None:
    data = ctypes.create_string_buffer(some_bytes(8192), 8192)
    host = ctypes.addressof(data)
    ok(cu.cuMemHostRegister(host, 8192, cu.CU_MEMHOSTREGISTER_DEVICEMAP))
    assert cu.cuMemHostRegister(host, 8192, 0)[0] == Code.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
    seen = ok(cu.cuMemHostGetDevicePointer(host, 0))
    ok(cu.cuMemsetD8Async(int(seen) + 100, 0x5A, 10, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert data.raw == some_bytes(8192)[:100] + b"\x5a" * 10 + some_bytes(8192)[110:]
    ok(cu.cuMemHostUnregister(host))
    assert cu.cuMemHostUnregister(host)[0] == Code.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED


def test_managed_memory_is_shared_by_host_and_device(context: Any) -> None:
    flags = cu.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value
    address = ok(cu.cuMemAllocManaged(MIB, flags))
    host_view(int(address), MIB)[:4] = b"host"
    assert read(address, 4) == b"host"
    ok(cu.cuMemsetD8(address, 7, MIB))
    ok(cu.cuCtxSynchronize())
    assert bytes(host_view(int(address), MIB)) == b"\x07" * MIB
    assert sim.used() == 0  # the device's memory may be exceeded
    ok(cu.cuMemFree(address))
    assert cu.cuMemAllocManaged(MIB, 0)[0] == Code.CUDA_ERROR_INVALID_VALUE


def test_pointers_can_be_queried_for_what_they_point_to(context: Any) -> None:
    def ask(what: Any, pointer: Any) -> Any:
        return ok(cu.cuPointerGetAttribute(what, pointer))

    device = ok(cu.cuMemAlloc(10_000))
    pinned = ok(cu.cuMemAllocHost(4096))
    managed = ok(cu.cuMemAllocManaged(4096, cu.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value))
    kind = PointerAttribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert ask(kind, device) == cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
    assert ask(kind, cu.CUdeviceptr(int(pinned))) == cu.CUmemorytype.CU_MEMORYTYPE_HOST
    is_managed = PointerAttribute.CU_POINTER_ATTRIBUTE_IS_MANAGED
    assert [bool(ask(is_managed, pointer)) for pointer in (device, managed)] == [False, True]
    inside = cu.CUdeviceptr(int(device) + 5000)
    assert int(ask(PointerAttribute.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside)) == int(device)
    assert ask(PointerAttribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside) == 10_000
    assert ask(PointerAttribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside) == 0
    assert int(ask(PointerAttribute.CU_POINTER_ATTRIBUTE_CONTEXT, inside)) == int(context)
    assert int(ask(PointerAttribute.CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inside)) == int(inside)
    both = [PointerAttribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE, is_managed]
    assert ok(cu.cuPointerGetAttributes(2, both, inside)) == [10_000, False]
    foreign = ctypes.create_string_buffer(1)
    code, _ = cu.cuPointerGetAttribute(kind, cu.CUdeviceptr(ctypes.addressof(foreign)))
    assert code == Code.CUDA_ERROR_INVALID_VALUE
    ok(cu.cuMemFree(device))
    ok(cu.cuMemFree(managed))
    ok(cu.cuMemFreeHost(pinned))


# Virtual memory


def test_physical_memory_is_mapped_written_and_mapped_elsewhere(context: Any) -> None:
    options = cu.CUmemAllocationGranularity_flags
    unit = ok(cu.cuMemGetAllocationGranularity(properties(), options.CU_MEM_ALLOC_GRANULARITY_MINIMUM))
    assert unit == 2 * MIB
    size = 2 * unit
    place = ok(cu.cuMemAddressReserve(8 * unit, 0, 0, 0))
    assert sim.used() == 0
    handle = ok(cu.cuMemCreate(size, properties(), 0))
    assert sim.used() == size
    ok(cu.cuMemMap(place, size, 0, handle, 0))
    assert cu.cuMemsetD8(place, 1, size)[0] == Code.CUDA_ERROR_ILLEGAL_ADDRESS  # not accessible yet
    allow(place, size)
    data = some_bytes(size)
    ok(cu.cuMemsetD8(place, 0x77, size))
    assert read(int(place) + size - 16, 16) == b"\x77" * 16
    ok(cu.cuMemcpyHtoD(place, data, size))
    ok(cu.cuCtxSynchronize())  # the copy returns when the data is staged, not when it has arrived

    elsewhere = cu.CUdeviceptr(int(place) + 4 * unit)
    ok(cu.cuMemUnmap(place, size))
    assert cu.cuMemsetD8(place, 1, 1)[0] == Code.CUDA_ERROR_ILLEGAL_ADDRESS
    ok(cu.cuMemMap(elsewhere, size, 0, handle, 0))
    allow(elsewhere, size)
    assert read(elsewhere, size) == data
    assert sim.census().handles == sim.census().mappings == sim.census().reservations == 1

    assert cu.cuMemAddressFree(place, 8 * unit)[0] == Code.CUDA_ERROR_INVALID_VALUE  # it is in use
    ok(cu.cuMemRelease(handle))
    assert sim.used() == size  # the mapping keeps the bytes
    assert read(elsewhere, size) == data
    ok(cu.cuMemUnmap(elsewhere, size))
    assert sim.used() == 0
    ok(cu.cuMemAddressFree(place, 8 * unit))


def test_the_rules_of_virtual_memory_reach_the_client(context: Any) -> None:
    unit = 2 * MIB
    assert cu.cuMemCreate(unit + 1, properties(), 0)[0] == Code.CUDA_ERROR_INVALID_VALUE
    assert cu.cuMemCreate(8 * GIB + unit, properties(), 0)[0] == Code.CUDA_ERROR_OUT_OF_MEMORY
    assert cu.cuMemCreate(unit, properties(1), 0)[0] == Code.CUDA_ERROR_INVALID_DEVICE
    place = ok(cu.cuMemAddressReserve(2 * unit, 0, 0, 0))
    handle = ok(cu.cuMemCreate(unit, properties(), 0))
    assert cu.cuMemMap(int(place) + 4096, unit, 0, handle, 0)[0] == Code.CUDA_ERROR_INVALID_VALUE
    assert cu.cuMemUnmap(place, unit)[0] == Code.CUDA_ERROR_INVALID_VALUE
    ok(cu.cuMemMap(place, unit, 0, handle, 0))
    assert cu.cuMemMap(place, unit, 0, handle, 0)[0] == Code.CUDA_ERROR_INVALID_VALUE
    assert ok(cu.cuMemGetAccess(device_location(), place)) == 0
    allow(place, unit)
    read_write = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    assert ok(cu.cuMemGetAccess(device_location(), place)) == int(read_write)
    again = ok(cu.cuMemRetainAllocationHandle(place))
    assert int(again) == int(handle)
    found = ok(cu.cuMemGetAllocationPropertiesFromHandle(again))
    assert found.type == cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    assert (found.location.type, found.location.id) == (Location.CU_MEM_LOCATION_TYPE_DEVICE, 0)
    ok(cu.cuMemUnmap(place, unit))
    for _ in range(2):
        ok(cu.cuMemRelease(handle))
    assert cu.cuMemRelease(handle)[0] == Code.CUDA_ERROR_INVALID_VALUE
    ok(cu.cuMemAddressFree(place, 2 * unit))


def test_a_device_without_virtual_memory_says_so() -> None:
    sim.configure(vmm=False)
    start(0)
    supported = Attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    assert ok(cu.cuDeviceGetAttribute(supported, 0)) == 0
    assert cu.cuMemCreate(2 * MIB, properties(), 0)[0] == Code.CUDA_ERROR_NOT_SUPPORTED
    end(0)


# Stream-ordered memory


def test_the_default_pool_allocates_in_stream_order(stream: Any) -> None:
    pool = ok(cu.cuDeviceGetDefaultMemPool(0))
    assert int(ok(cu.cuDeviceGetMemPool(0))) == int(pool)
    data = some_bytes(MIB)
    with sim.temporarily(delay=SLOW):
        address = ok(cu.cuMemAllocAsync(MIB, stream))
        ok(cu.cuMemcpyHtoDAsync(address, data, MIB, stream))
        found = bytearray(MIB)
        ok(cu.cuMemcpyDtoHAsync(found, address, MIB, stream))
        ok(cu.cuMemFreeAsync(address, stream))
    assert bytes(found) == data
    assert cu.cuMemFreeAsync(address, stream)[0] == Code.CUDA_ERROR_INVALID_VALUE
    ok(cu.cuStreamSynchronize(stream))
    assert pool_counts(pool) == (0, 0)  # with a threshold of 0 nothing is kept after a synchronisation


def test_work_queued_before_a_free_in_stream_order_still_runs(stream: Any) -> None:
    pinned = ok(cu.cuMemAllocHost(MIB))
    address = ok(cu.cuMemAllocAsync(MIB, stream))
    with sim.temporarily(delay=SLOW):
        ok(cu.cuMemsetD8Async(address, 0x66, MIB, stream))
        ok(cu.cuMemcpyDtoHAsync(pinned, address, MIB, stream))
        ok(cu.cuMemFreeAsync(address, stream))
        assert cu.cuMemsetD8Async(address, 0, MIB, stream)[0] == Code.CUDA_ERROR_ILLEGAL_ADDRESS
        ok(cu.cuStreamSynchronize(stream))
    assert bytes(host_view(pinned, MIB)) == b"\x66" * MIB
    assert sim.used() == 0
    ok(cu.cuMemFreeHost(pinned))


def test_freeing_pool_memory_outside_a_stream_does_not_wait(stream: Any) -> None:
    for waits in (True, False):
        address = ok(cu.cuMemAllocAsync(4096, stream))
        ok(cu.cuMemsetD8Async(address, 1, 4096, stream))
        if waits:
            ok(cu.cuStreamSynchronize(stream))
        ok(cu.cuMemFree(address))
        assert [(race.kind, race.second.operation) for race in sim.races()] == (
            [] if waits else [("removed", "cuMemFree")]
        )
    sim.clear_races()
    ok(cu.cuStreamSynchronize(stream))
    assert sim.used() == 0


def test_a_pool_keeps_memory_up_to_its_threshold_and_is_trimmed(stream: Any) -> None:
    pool = new_pool()
    threshold = PoolAttribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    ok(cu.cuMemPoolSetAttribute(pool, threshold, cu.cuuint64_t(64 * MIB)))
    assert int(ok(cu.cuMemPoolGetAttribute(pool, threshold))) == 64 * MIB
    first = ok(cu.cuMemAllocFromPoolAsync(4 * MIB, pool, stream))
    assert pool_counts(pool) == (4 * MIB, 4 * MIB)
    ok(cu.cuMemFreeAsync(first, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert pool_counts(pool) == (0, 4 * MIB)
    second = ok(cu.cuMemAllocFromPoolAsync(4 * MIB, pool, stream))
    assert int(second) == int(first)
    assert int(ok(cu.cuMemPoolGetAttribute(pool, PoolAttribute.CU_MEMPOOL_ATTR_USED_MEM_HIGH))) == 4 * MIB
    ok(cu.cuMemFreeAsync(second, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert sim.used() == 4 * MIB
    ok(cu.cuMemPoolTrimTo(pool, 0))
    assert pool_counts(pool) == (0, 0)
    assert sim.used() == 0
    ok(cu.cuMemPoolDestroy(pool))
    assert cu.cuMemPoolTrimTo(pool, 0)[0] == Code.CUDA_ERROR_INVALID_VALUE
    expect("dead pool")


def test_a_pool_does_not_exceed_its_maximum_size(stream: Any) -> None:
    pool = new_pool(max_size=4 * MIB)
    address = ok(cu.cuMemAllocFromPoolAsync(3 * MIB, pool, stream))
    assert cu.cuMemAllocFromPoolAsync(2 * MIB, pool, stream)[0] == Code.CUDA_ERROR_OUT_OF_MEMORY
    assert int(ok(cu.cuPointerGetAttribute(PointerAttribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address))) == int(pool)
    ok(cu.cuMemPoolDestroy(pool))  # it is destroyed with its last allocation
    assert sim.used() == 3 * MIB
    ok(cu.cuMemFreeAsync(address, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert sim.used() == 0


def test_a_pool_reuses_memory_of_another_stream_without_a_race(stream: Any) -> None:
    other = ok(cu.cuStreamCreate(NON_BLOCKING))
    with sim.temporarily(delay=SLOW):
        first = ok(cu.cuMemAllocAsync(MIB, stream))
        ok(cu.cuMemsetD8Async(first, 1, MIB, stream))
        ok(cu.cuMemFreeAsync(first, stream))
        second = ok(cu.cuMemAllocAsync(MIB, other))
        ok(cu.cuMemsetD8Async(second, 2, MIB, other))
        found = bytearray(MIB)
        ok(cu.cuMemcpyDtoHAsync(found, second, MIB, other))
        ok(cu.cuMemFreeAsync(second, other))
    assert int(first) == int(second)
    assert bytes(found) == b"\x02" * MIB
    ok(cu.cuCtxSynchronize())
    ok(cu.cuStreamDestroy(other))


def test_a_pool_of_host_memory_is_accessible_to_the_host_and_to_copies(stream: Any) -> None:
    location = cu.CUmemLocation()
    location.type = Location.CU_MEM_LOCATION_TYPE_HOST
    pinned = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    pool = ok(cu.cuMemGetMemPool(location, pinned))
    assert int(ok(cu.cuMemGetDefaultMemPool(location, pinned))) == int(pool) != int(ok(cu.cuDeviceGetMemPool(0)))
    host = ok(cu.cuMemAllocFromPoolAsync(4096, pool, stream))
    ok(cu.cuStreamSynchronize(stream))
    host_view(host, 4096)[:] = some_bytes(4096)
    device = ok(cu.cuMemAllocAsync(4096, stream))
    ok(cu.cuMemcpyHtoDAsync(device, int(host), 4096, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert read(device, 4096) == some_bytes(4096)
    kind = PointerAttribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert ok(cu.cuPointerGetAttribute(kind, host)) == cu.CUmemorytype.CU_MEMORYTYPE_HOST
    # The device itself needs access.
    assert ok(cu.cuMemPoolGetAccess(pool, device_location())) == 0
    assert cu.cuMemsetD8Async(host, 1, 4096, stream)[0] == Code.CUDA_ERROR_ILLEGAL_ADDRESS
    access = cu.CUmemAccessDesc()
    access.location = device_location()
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(cu.cuMemPoolSetAccess(pool, [access], 1))
    ok(cu.cuMemsetD8Async(host, 1, 4096, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert bytes(host_view(host, 4096)) == b"\x01" * 4096
    for address in (host, device):
        ok(cu.cuMemFreeAsync(address, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert pool_counts(pool) == (0, 0)
