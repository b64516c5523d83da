"""NVIDIA's cuda-bindings on the simulated driver: the driver API as a Python program sees it.

Every call is the client's own: it looks functions up, converts arguments, and knows of no simulation.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from cuda.bindings import driver as cu

from arena import sim

from .conftest import assert_nothing_is_left
from .process import run_client

MIB = 1 << 20
GIB = 1 << 30
SLOW = 150_000  # microseconds: longer than any call takes, also on a busy machine
Code = cu.CUresult
Attribute = cu.CUdevice_attribute
PoolAttribute = cu.CUmemPool_attribute
PointerAttribute = cu.CUpointer_attribute
Location = cu.CUmemLocationType
LEGACY = cu.CUstream(cu.CU_STREAM_LEGACY)
BLOCKING = cu.CUstream_flags.CU_STREAM_DEFAULT.value
NON_BLOCKING = cu.CUstream_flags.CU_STREAM_NON_BLOCKING.value


def ok(answer: tuple[Any, ...]) -> Any:
    """What a call returned beside its code, which must be success."""
    code, *values = answer
    assert code == Code.CUDA_SUCCESS
    return values[0] if len(values) == 1 else tuple(values)


def start(device: int) -> Any:
    """Make the primary context of a device the current one."""
    ok(cu.cuInit(0))
    context = ok(cu.cuDevicePrimaryCtxRetain(device))
    ok(cu.cuCtxSetCurrent(context))
    return context


def end(*devices: int) -> None:
    """What a context still has goes with it, so that is looked at first."""
    assert_nothing_is_left()
    ok(cu.cuCtxSetCurrent(cu.CUcontext(0)))
    for device in devices:
        ok(cu.cuDevicePrimaryCtxRelease(device))
    assert sim.census().contexts == 0


@pytest.fixture
def context() -> Iterator[Any]:
    yield start(0)
    end(0)


@pytest.fixture
def contexts() -> Iterator[tuple[Any, Any]]:
    """Those of two devices; the first is current."""
    sim.configure(memory=["8GiB", "24GiB"])
    second = start(1)
    yield start(0), second
    end(0, 1)


@pytest.fixture
def stream(context: Any) -> Iterator[Any]:
    made = ok(cu.cuStreamCreate(NON_BLOCKING))
    yield made
    ok(cu.cuStreamDestroy(made))


def some_bytes(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def read(address: Any, size: int) -> bytes:
    found = bytearray(size)
    ok(cu.cuMemcpyDtoH(found, address, size))
    return bytes(found)


def host_view(address: int, size: int) -> Any:
    return (ctypes.c_ubyte * size).from_address(int(address))


def device_location(device: int = 0) -> Any:
    location = cu.CUmemLocation()
    location.type = Location.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = device
    return location


def properties(device: int = 0) -> Any:
    prop = cu.CUmemAllocationProp()
    prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location = device_location(device)
    return prop


def allow(address: Any, size: int, device: int = 0) -> None:
    access = cu.CUmemAccessDesc()
    access.location = device_location(device)
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(cu.cuMemSetAccess(address, size, [access], 1))


def new_pool(max_size: int = 0) -> Any:
    props = cu.CUmemPoolProps()
    props.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.location = device_location()
    props.maxSize = max_size
    return ok(cu.cuMemPoolCreate(props))


def pool_counts(pool: Any) -> tuple[int, int]:
    """Bytes in use, and bytes held."""
    used = ok(cu.cuMemPoolGetAttribute(pool, PoolAttribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT))
    held = ok(cu.cuMemPoolGetAttribute(pool, PoolAttribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT))
    return int(used), int(held)


# The driver and its devices


def test_nothing_works_before_initialisation() -> None:
    assert cu.cuDeviceGetCount()[0] == Code.CUDA_ERROR_NOT_INITIALIZED
    assert cu.cuMemAlloc(4096)[0] == Code.CUDA_ERROR_NOT_INITIALIZED
    assert ok(cu.cuDriverGetVersion()) == 13000
    ok(cu.cuInit(0))
    assert ok(cu.cuDeviceGetCount()) == 1
    assert cu.cuMemAlloc(4096)[0] == Code.CUDA_ERROR_INVALID_CONTEXT


def test_a_device_describes_itself() -> None:
    sim.configure(memory=["8GiB", "24GiB"])
    ok(cu.cuInit(0))
    assert ok(cu.cuDeviceGetCount()) == 2
    first, second = ok(cu.cuDeviceGet(0)), ok(cu.cuDeviceGet(1))
    name = ok(cu.cuDeviceGetName(64, first)).split(b"\0")[0]
    assert name == b"Simulated CUDA device"
    assert ok(cu.cuDeviceGetName(10, first)) == b"Simulated\0"
    assert [ok(cu.cuDeviceTotalMem(device)) for device in (first, second)] == [8 * GIB, 24 * GIB]
    uuids = [ok(cu.cuDeviceGetUuid(device)).bytes for device in (first, second)]
    assert [len(uuid) for uuid in uuids] == [16, 16]
    assert uuids[0] != uuids[1]
    assert ok(cu.cuDeviceGetPCIBusId(13, second)) == b"0000:02:00.0\0"
    assert cu.cuDeviceGet(2)[0] == Code.CUDA_ERROR_INVALID_DEVICE


def test_a_device_has_attributes() -> None:
    ok(cu.cuInit(0))
    expected = {
        Attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: 8,
        Attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: 0,
        Attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE: 32,
        Attribute.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: 1,
        Attribute.CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: 1,
        Attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: 1,
        Attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: 1,
    }
    assert {what: ok(cu.cuDeviceGetAttribute(what, 0)) for what in expected} == expected
    known = [what for what in Attribute if what != Attribute.CU_DEVICE_ATTRIBUTE_MAX]
    assert [what for what in known if cu.cuDeviceGetAttribute(what, 0)[0] != Code.CUDA_SUCCESS] == []


def test_errors_have_the_names_that_the_client_knows() -> None:
    codes = [code for code in Code if cu.cuGetErrorName(code)[0] == Code.CUDA_SUCCESS]
    assert [cu.cuGetErrorName(code)[1].decode() for code in codes] == [code.name for code in codes]
    assert all(ok(cu.cuGetErrorString(code)) for code in codes)
    assert cu.cuGetErrorName(123456) == (Code.CUDA_ERROR_INVALID_VALUE, None)


def test_undocumented_tables_are_refused() -> None:
    ok(cu.cuInit(0))
    assert cu.cuGetExportTable(cu.CUuuid()) == (Code.CUDA_ERROR_NOT_FOUND, None)


def test_a_function_that_is_not_simulated_is_an_exception(context: Any) -> None:
    with pytest.raises(RuntimeError, match="cuModuleLoadData"):
        cu.cuModuleLoadData(b"no code runs here")


# Contexts


def test_the_primary_context_is_one_and_counted(context: Any) -> None:
    assert int(ok(cu.cuDevicePrimaryCtxRetain(0))) == int(context)
    assert ok(cu.cuDevicePrimaryCtxGetState(0)) == (0, 1)
    ok(cu.cuDevicePrimaryCtxRelease(0))
    assert ok(cu.cuDevicePrimaryCtxGetState(0)) == (0, 1)
    assert int(ok(cu.cuCtxGetCurrent())) == int(context)
    assert int(ok(cu.cuCtxGetDevice())) == 0
    assert sim.census().contexts == 1


def test_contexts_are_pushed_and_popped(contexts: tuple[Any, Any]) -> None:
    first, second = contexts
    ok(cu.cuCtxPushCurrent(second))
    assert int(ok(cu.cuCtxGetDevice())) == 1
    assert int(ok(cu.cuCtxPopCurrent())) == int(second)
    assert int(ok(cu.cuCtxGetCurrent())) == int(first)


def test_a_context_is_current_in_its_own_thread_only(context: Any) -> None:
    answers = []
    thread = threading.Thread(target=lambda: answers.append(cu.cuMemAlloc(4096)))
    thread.start()
    thread.join()
    assert answers[0][0] == Code.CUDA_ERROR_INVALID_CONTEXT


def test_a_primary_context_that_was_reset_is_destroyed_until_it_is_retained_again(context: Any) -> None:
    ok(cu.cuMemAlloc(4096))
    stream = ok(cu.cuStreamCreate(NON_BLOCKING))
    number = ok(cu.cuCtxGetId(context))
    ok(cu.cuDevicePrimaryCtxReset(0))
    assert (sim.used(), sim.census().streams, sim.census().contexts) == (0, 0, 0)
    assert ok(cu.cuDevicePrimaryCtxGetState(0)) == (0, 0)
    assert int(ok(cu.cuCtxGetCurrent())) == int(context)
    assert cu.cuMemAlloc(4096)[0] == Code.CUDA_ERROR_CONTEXT_IS_DESTROYED
    ok(cu.cuCtxSetCurrent(context))
    assert cu.cuMemAlloc(4096)[0] == Code.CUDA_ERROR_CONTEXT_IS_DESTROYED
    again = ok(cu.cuDevicePrimaryCtxRetain(0))
    assert int(again) == int(context)
    assert int(ok(cu.cuCtxGetId(again))) != int(number)
    ok(cu.cuMemFree(ok(cu.cuMemAlloc(4096))))
    assert cu.cuStreamSynchronize(stream)[0] == Code.CUDA_ERROR_INVALID_HANDLE
    ok(cu.cuDevicePrimaryCtxRelease(0))


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


def test_memory_ends_where_the_device_ends(context: Any) -> None:
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
    ok(cu.cuCtxSynchronize())  # the stream does not wait for the legacy one, nor the host for a fill
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


def test_memory_of_the_program_can_be_registered(stream: Any) -> None:
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


def test_managed_memory_is_one_for_host_and_device(context: Any) -> None:
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


def test_pointers_tell_what_they_point_to(context: Any) -> None:
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


# Streams and events


def test_streams_know_their_priority_and_kind(context: Any) -> None:
    least, greatest = ok(cu.cuCtxGetStreamPriorityRange())
    assert greatest < least
    urgent = ok(cu.cuStreamCreateWithPriority(NON_BLOCKING, greatest))
    plain = ok(cu.cuStreamCreate(BLOCKING))
    assert [ok(cu.cuStreamGetPriority(stream)) for stream in (urgent, plain)] == [greatest, least]
    assert [ok(cu.cuStreamGetFlags(stream)) for stream in (urgent, plain)] == [NON_BLOCKING, BLOCKING]
    assert len({int(ok(cu.cuStreamGetId(stream))) for stream in (urgent, plain, LEGACY)}) == 3
    assert sim.census().streams == 2
    for stream in (urgent, plain):
        ok(cu.cuStreamDestroy(stream))
    assert cu.cuStreamQuery(urgent)[0] == Code.CUDA_ERROR_INVALID_HANDLE


@pytest.mark.parametrize(("flags", "waits"), [(BLOCKING, True), (NON_BLOCKING, False)])
def test_the_default_stream_waits_for_blocking_streams_only(context: Any, flags: int, waits: bool) -> None:
    stream, address = ok(cu.cuStreamCreate(flags)), ok(cu.cuMemAlloc(8192))
    with sim.temporarily(delay=SLOW):
        ok(cu.cuMemsetD8Async(address, 1, 4096, stream))
    ok(cu.cuMemsetD8Async(int(address) + 4096, 2, 4096, LEGACY))
    ok(cu.cuStreamSynchronize(LEGACY))
    done = cu.cuStreamQuery(stream)[0]
    assert done == (Code.CUDA_SUCCESS if waits else Code.CUDA_ERROR_NOT_READY)
    ok(cu.cuStreamSynchronize(stream))
    assert read(address, 8192) == b"\x01" * 4096 + b"\x02" * 4096
    ok(cu.cuStreamDestroy(stream))
    ok(cu.cuMemFree(address))


def test_an_event_is_reached_when_the_work_before_it_is_done(stream: Any) -> None:
    begin, finish, untimed = (ok(cu.cuEventCreate(flags)) for flags in (0, 0, 2))
    address = ok(cu.cuMemAlloc(4096))
    ok(cu.cuEventQuery(begin))  # never recorded: nothing to wait for
    ok(cu.cuEventRecord(begin, stream))
    with sim.temporarily(delay=SLOW):
        ok(cu.cuMemsetD8Async(address, 1, 4096, stream))
        ok(cu.cuEventRecord(finish, stream))
        ok(cu.cuEventRecord(untimed, stream))
        assert cu.cuEventQuery(finish)[0] == Code.CUDA_ERROR_NOT_READY
        assert cu.cuEventElapsedTime(begin, finish)[0] == Code.CUDA_ERROR_NOT_READY
        ok(cu.cuEventSynchronize(untimed))
    ok(cu.cuEventQuery(finish))
    took = ok(cu.cuEventElapsedTime(begin, finish))
    assert SLOW / 1000 <= took < 10_000
    assert ok(cu.cuEventElapsedTime(finish, begin)) == -took
    assert cu.cuEventElapsedTime(begin, untimed)[0] == Code.CUDA_ERROR_INVALID_HANDLE
    assert sim.census().events == 3
    for event in (begin, finish, untimed):
        ok(cu.cuEventDestroy(event))
    ok(cu.cuMemFree(address))


def test_an_event_orders_two_streams(stream: Any) -> None:
    other, event = ok(cu.cuStreamCreate(NON_BLOCKING)), ok(cu.cuEventCreate(2))
    address = ok(cu.cuMemAlloc(8192))
    with sim.temporarily(delay=SLOW):
        ok(cu.cuMemsetD8Async(address, 0x33, 4096, stream))
        ok(cu.cuEventRecord(event, stream))
        ok(cu.cuStreamWaitEvent(other, event, 0))
        ok(cu.cuMemcpyDtoDAsync(int(address) + 4096, address, 4096, other))
        ok(cu.cuStreamSynchronize(other))
    assert read(address, 8192) == b"\x33" * 8192
    ok(cu.cuEventDestroy(event))
    ok(cu.cuStreamDestroy(other))
    ok(cu.cuMemFree(address))


def test_a_client_that_forgets_the_event_is_told_of_a_race(stream: Any) -> None:
    other, address = ok(cu.cuStreamCreate(NON_BLOCKING)), ok(cu.cuMemAlloc(8192))
    ok(cu.cuMemsetD8Async(address, 0x33, 4096, stream))
    ok(cu.cuMemcpyDtoDAsync(int(address) + 4096, address, 4096, other))
    [race] = sim.races()
    assert (race.first.operation, race.first.access) == ("cuMemsetD8Async", "write")
    assert (race.second.operation, race.second.access) == ("cuMemcpyDtoDAsync", "read")
    assert (race.first.stream, race.second.stream) == (int(stream), int(other))
    assert (race.first.begin, race.first.end) == (int(address), int(address) + 4096)
    sim.clear_races()
    ok(cu.cuStreamDestroy(other))
    ok(cu.cuMemFree(address))


def test_a_host_function_runs_in_stream_order(stream: Any) -> None:
    pinned, address = ok(cu.cuMemAllocHost(8)), ok(cu.cuMemAlloc(8))
    seen: list[tuple[int, bytes, int]] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def look(data: int) -> None:
        refused = cu.cuMemAlloc(4096)[0]  # no call of the driver is permitted in here
        seen.append((data, bytes(host_view(pinned, 8)), int(refused)))

    function = cu.CUhostFn(ctypes.cast(look, ctypes.c_void_p).value)
    host_view(pinned, 8)[:] = bytes(8)
    with sim.temporarily(delay=SLOW):
        ok(cu.cuMemsetD8Async(address, 9, 8, stream))
        ok(cu.cuMemcpyDtoHAsync(pinned, address, 8, stream))
        ok(cu.cuLaunchHostFunc(stream, function, 4711))
        assert seen == []
        ok(cu.cuStreamSynchronize(stream))
    assert seen == [(4711, b"\x09" * 8, int(Code.CUDA_ERROR_NOT_PERMITTED))]
    ok(cu.cuMemFree(address))
    ok(cu.cuMemFreeHost(pinned))


PER_THREAD = """
import threading
from arena import sim
sim.configure(races=True)
sim.enable()
from cuda.bindings import driver as cu

def ok(answer):
    assert answer[0] == cu.CUresult.CUDA_SUCCESS, answer
    return answer[-1]

cu.cuInit(0)
context = ok(cu.cuDevicePrimaryCtxRetain(0))
ok(cu.cuCtxSetCurrent(context))
address = ok(cu.cuMemAlloc(8192))
ids, queries, there = {}, {}, threading.Barrier(2)

def work(number):
    ok(cu.cuCtxSetCurrent(context))
    ids[number] = int(ok(cu.cuStreamGetId(cu.CUstream(0))))
    there.wait()
    if number == 0:
        with sim.temporarily(delay=200_000):
            ok(cu.cuMemsetD8Async(address, 1, 4096, cu.CUstream(0)))
    there.wait()
    queries[number] = cu.cuStreamQuery(cu.CUstream(0))[0]
    there.wait()

threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
ids["main"] = int(ok(cu.cuStreamGetId(cu.CUstream(0))))
ids["legacy"] = int(ok(cu.cuStreamGetId(cu.CUstream(cu.CU_STREAM_LEGACY))))
ok(cu.cuMemFree(address))
print(len(set(ids.values())), queries[0].name, queries[1].name, len(sim.races()), sim.used())
"""


def test_with_per_thread_default_streams_each_thread_has_its_own() -> None:
    output = run_client(PER_THREAD, CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM="1")
    assert output.split() == ["4", "CUDA_ERROR_NOT_READY", "CUDA_SUCCESS", "0", "0"]
    # Without the variable both threads, and all others, have the legacy stream, and both find it busy.
    output = run_client(PER_THREAD)
    assert output.split() == ["1", "CUDA_ERROR_NOT_READY", "CUDA_ERROR_NOT_READY", "0", "0"]


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
    assert cu.cuMemsetD8(place, 1, size)[0] == Code.CUDA_ERROR_ILLEGAL_ADDRESS  # nobody may touch it yet
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


def test_the_default_pool_gives_memory_in_stream_order(stream: Any) -> None:
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
    assert pool_counts(pool) == (0, 0)  # with a threshold of 0 nothing is kept over a synchronisation


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


def test_freeing_pool_memory_outside_of_a_stream_does_not_wait(stream: Any) -> None:
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


def test_a_pool_with_a_largest_size_ends_there(stream: Any) -> None:
    pool = new_pool(max_size=4 * MIB)
    address = ok(cu.cuMemAllocFromPoolAsync(3 * MIB, pool, stream))
    assert cu.cuMemAllocFromPoolAsync(2 * MIB, pool, stream)[0] == Code.CUDA_ERROR_OUT_OF_MEMORY
    assert int(ok(cu.cuPointerGetAttribute(PointerAttribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address))) == int(pool)
    ok(cu.cuMemPoolDestroy(pool))  # its last allocation takes it along
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


def test_a_pool_of_host_memory_is_open_to_the_host_and_to_copies(stream: Any) -> None:
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
    # The device itself has to be let in.
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


# Graphs


@pytest.mark.parametrize("flags", [True, False], ids=["with flags", "with parameters"])
def test_a_captured_graph_does_its_work_at_each_launch(stream: Any, flags: bool) -> None:
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    status = cu.CUstreamCaptureStatus
    address, pinned = ok(cu.cuMemAlloc(4096)), ok(cu.cuMemAllocHost(4096))
    ok(cu.cuMemsetD8(address, 0xEE, 4096))
    host_view(pinned, 4096)[:] = bytes(4096)
    ok(cu.cuStreamBeginCapture(stream, mode))
    assert ok(cu.cuStreamIsCapturing(stream)) == status.CU_STREAM_CAPTURE_STATUS_ACTIVE
    under_way = ok(cu.cuStreamGetCaptureInfo(stream))[2]
    ok(cu.cuMemsetD8Async(address, 0x42, 2048, stream))
    ok(cu.cuMemcpyDtoHAsync(pinned, address, 4096, stream))
    graph = ok(cu.cuStreamEndCapture(stream))
    assert int(graph) == int(under_way)
    assert ok(cu.cuStreamIsCapturing(stream)) == status.CU_STREAM_CAPTURE_STATUS_NONE
    assert read(address, 4096) == b"\xee" * 4096  # nothing has run
    how = cu.CUDA_GRAPH_INSTANTIATE_PARAMS()
    executable = ok(cu.cuGraphInstantiate(graph, 0) if flags else cu.cuGraphInstantiateWithParams(graph, how))
    assert how.result_out == cu.CUgraphInstantiateResult.CUDA_GRAPH_INSTANTIATE_SUCCESS
    ok(cu.cuGraphDestroy(graph))
    for last in (0xEE, 0x11):
        ok(cu.cuMemsetD8(address, last, 4096))
        ok(cu.cuCtxSynchronize())
        ok(cu.cuGraphLaunch(executable, stream))
        ok(cu.cuStreamSynchronize(stream))
        assert bytes(host_view(pinned, 4096)) == b"\x42" * 2048 + bytes([last]) * 2048
    ok(cu.cuGraphExecDestroy(executable))
    assert cu.cuGraphLaunch(executable, stream)[0] == Code.CUDA_ERROR_INVALID_VALUE
    ok(cu.cuMemFree(address))
    ok(cu.cuMemFreeHost(pinned))


def test_an_allocation_ends_a_capture(stream: Any) -> None:
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    assert cu.cuMemAlloc(4096)[0] == Code.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    assert cu.cuStreamEndCapture(stream) == (Code.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, None)


# Several devices


def test_memory_is_copied_between_devices(contexts: tuple[Any, Any]) -> None:
    first, second = contexts
    data = some_bytes(MIB)
    here = ok(cu.cuMemAlloc(MIB))
    ok(cu.cuMemcpyHtoD(here, data, MIB))
    ok(cu.cuCtxPushCurrent(second))
    there = ok(cu.cuMemAlloc(MIB))
    ok(cu.cuCtxPopCurrent())
    assert (sim.used(0), sim.used(1)) == (MIB, MIB)
    ok(cu.cuMemcpyPeer(there, second, here, first, MIB))
    assert read(there, MIB) == data
    ordinal = PointerAttribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    assert [ok(cu.cuPointerGetAttribute(ordinal, pointer)) for pointer in (here, there)] == [0, 1]
    ok(cu.cuMemFree(here))
    ok(cu.cuMemFree(there))


def test_work_on_another_devices_memory_needs_peer_access(contexts: tuple[Any, Any]) -> None:
    _, second = contexts
    ok(cu.cuCtxPushCurrent(second))
    there = ok(cu.cuMemAlloc(4096))
    ok(cu.cuCtxPopCurrent())
    assert ok(cu.cuDeviceCanAccessPeer(0, 1)) == 1
    assert cu.cuMemsetD8(there, 5, 4096)[0] == Code.CUDA_ERROR_ILLEGAL_ADDRESS
    ok(cu.cuCtxEnablePeerAccess(second, 0))
    assert cu.cuCtxEnablePeerAccess(second, 0)[0] == Code.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
    ok(cu.cuMemsetD8(there, 5, 4096))
    assert read(there, 4096) == b"\x05" * 4096
    ok(cu.cuCtxDisablePeerAccess(second))
    ok(cu.cuMemFree(there))


# Planned failures


def test_a_planned_failure_reaches_the_client_once(context: Any) -> None:
    sim.fail("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY")
    calls = sim.calls("cuMemAlloc")
    assert cu.cuMemAlloc(4096)[0] == Code.CUDA_ERROR_OUT_OF_MEMORY
    assert sim.used() == 0
    address = ok(cu.cuMemAlloc(4096))
    assert sim.calls("cuMemAlloc") == calls + 2
    ok(cu.cuMemFree(address))


def test_failures_are_planned_ahead(context: Any) -> None:
    sim.fail("cuMemCreate", "CUDA_ERROR_DEVICE_UNAVAILABLE", nth=2, times=2)
    answers = [cu.cuMemCreate(2 * MIB, properties(), 0) for _ in range(4)]
    unavailable = Code.CUDA_ERROR_DEVICE_UNAVAILABLE
    assert [code for code, _ in answers] == [Code.CUDA_SUCCESS, unavailable, unavailable, Code.CUDA_SUCCESS]
    assert sim.used() == 4 * MIB
    for _, handle in (answers[0], answers[3]):
        ok(cu.cuMemRelease(handle))
