"""Plain, host, managed and pool memory: allocation, queries, and what is refused."""

from __future__ import annotations

import ctypes
import os
import random
from pathlib import Path

import pytest

from arena import sim

from ..findings import expect
from .cu import GIB, ILLEGAL_ADDRESS, INVALID_VALUE, MIB, OUT_OF_MEMORY, SUCCESS, Cu, Location, PoolProps

USED_CURRENT, RESERVED_CURRENT, RELEASE_THRESHOLD = 7, 5, 4


def memory_info(cu: Cu) -> tuple[int, int]:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cu.ok("cuMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def test_allocated_memory_is_no_longer_free(cu: Cu) -> None:
    assert memory_info(cu) == (8 * GIB, 8 * GIB)
    address = cu.alloc(GIB)
    assert memory_info(cu) == (7 * GIB, 8 * GIB)
    with sim.temporarily(other="2GiB"):
        assert memory_info(cu) == (5 * GIB, 8 * GIB)
    cu.ok("cuMemFree", address)
    assert memory_info(cu) == (8 * GIB, 8 * GIB)
    assert sim.peak() == GIB


def test_an_allocation_beyond_the_device_is_out_of_memory(cu: Cu) -> None:
    for size in (8 * GIB + 1, 1 << 46, (1 << 64) - 1):
        assert cu.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), size) == OUT_OF_MEMORY
    assert sim.used() == 0


def test_a_zero_size_allocation_is_refused(cu: Cu) -> None:
    assert cu.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), 0) == INVALID_VALUE
    assert cu.cuMemAlloc(None, 512) == INVALID_VALUE


def test_memory_is_freed_once_and_by_its_first_address(cu: Cu) -> None:
    address = cu.alloc(MIB)
    assert cu.cuMemFree(address + 512) == INVALID_VALUE
    assert cu.cuMemFree(address) == SUCCESS
    assert cu.cuMemFree(address) == INVALID_VALUE
    assert cu.cuMemFree(0) == SUCCESS


def test_an_operation_beyond_the_end_of_an_allocation_is_illegal(cu: Cu) -> None:
    address = cu.alloc(1000)
    assert cu.cuMemsetD8(address, 1, 1000) == SUCCESS
    assert cu.cuMemsetD8(address, 1, 1001) == ILLEGAL_ADDRESS
    assert cu.cuMemsetD8(address - 1, 1, 2) == ILLEGAL_ADDRESS
    assert cu.cuMemcpyHtoD(address + 999, b"ab", 2) == ILLEGAL_ADDRESS


def test_an_operation_on_freed_memory_is_illegal(cu: Cu) -> None:
    address = cu.alloc(4096)
    cu.ok("cuMemFree", address)
    assert cu.cuMemsetD8(address, 1, 1) == ILLEGAL_ADDRESS


def test_copies_arrive_in_every_direction(cu: Cu) -> None:
    data = bytes(range(256)) * 4096
    first, second = cu.alloc(len(data)), cu.alloc(len(data))
    cu.write(first, data)
    cu.ok("cuMemcpyDtoD", second, first, len(data))
    assert cu.read(second, len(data)) == data
    out = ctypes.create_string_buffer(len(data))
    cu.ok("cuMemcpy", ctypes.addressof(out), second, len(data))  # the driver finds out the direction
    assert out.raw == data


@pytest.mark.parametrize(("function", "width"), [("cuMemsetD8", 1), ("cuMemsetD16", 2), ("cuMemsetD32", 4)])
def test_fills_write_their_pattern_and_need_alignment(cu: Cu, function: str, width: int) -> None:
    address = cu.alloc(4096)
    value = int.from_bytes(b"\x12\x34\x56\x78"[:width], "little")
    cu.ok(function, address, value, 1024 // width)
    assert cu.read(address, 1024) == b"\x12\x34\x56\x78"[:width] * (1024 // width)
    if width > 1:
        assert getattr(cu, function)(address + 1, value, 1) == INVALID_VALUE


def host_memory() -> int:
    """Host memory behind all simulated memory, in bytes."""
    links = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return sum(os.stat(link).st_blocks * 512 for link in links if link.is_symlink() and "cudasim" in os.readlink(link))


def test_copies_and_fills_of_zeros_take_no_host_memory(cu: Cu) -> None:
    size = 64 * MIB
    first, second = cu.alloc(size), cu.alloc(size)
    cu.write(first + 5 * MIB + 7, b"here")
    before = host_memory()
    assert cu.read(first, size) == bytes(5 * MIB + 7) + b"here" + bytes(59 * MIB - 11)
    cu.ok("cuMemcpyDtoD", second + 512, first, size - 512)
    cu.write(second, bytes(4 * MIB))
    cu.ok("cuMemsetD8", first + 8 * MIB, 0, 8 * MIB)
    cu.ok("cuMemsetD32", first + 16 * MIB, 0, 2 * MIB)
    assert cu.read(second + 5 * MIB + 512 + 7, 4) == b"here"
    assert host_memory() - before <= 4 * 4096


@pytest.mark.parametrize("seed", range(5))
def test_any_copies_and_fills_leave_the_right_bytes(cu: Cu, seed: int) -> None:
    chance = random.Random(seed)
    size = MIB + 4096 * seed + 12
    pinned = cu.out("cuMemHostAlloc", size, 0)
    places = [cu.alloc(size), cu.mapped(2 * MIB)[0], pinned]
    models = [bytearray(size) for _ in places]
    for _ in range(150):
        to, source = chance.randrange(3), chance.randrange(3)
        count = chance.choice([1, 4096, 100_000, 300_000, size // 2])
        at, at_source = (chance.choice([0, 4096, chance.randrange(size - count)]) for _ in range(2))
        what = chance.choice(["copy", "copy", "write", "zero", "fill"])
        if what == "copy":
            if to == source:
                continue
            data = bytes(models[source][at_source : at_source + count])
            cu.ok("cuMemcpy", places[to] + at, places[source] + at_source, count)
        elif what == "write":  # some bytes here and there, in pages of zeros
            data = bytearray(count)
            for _ in range(3):
                data[chance.randrange(count)] = chance.randrange(256)
            buffer = ctypes.create_string_buffer(bytes(data), count)
            cu.ok("cuMemcpy", places[to] + at, ctypes.addressof(buffer), count)
        else:
            data = bytes([0 if what == "zero" else chance.randrange(1, 256)]) * count
            cu.ok("cuMemsetD8", places[to] + at, data[0], count)
        models[to][at : at + count] = data
    for place, model in zip(places, models, strict=True):
        assert cu.read(place, size) == model


def test_new_memory_is_zero(cu: Cu) -> None:
    address = cu.alloc(MIB)
    cu.ok("cuMemsetD8", address, 255, MIB)
    cu.ok("cuMemFree", address)
    assert cu.read(cu.alloc(MIB), MIB) == bytes(MIB)


def test_host_memory_is_accessible_from_both_sides(cu: Cu) -> None:
    host = cu.out("cuMemHostAlloc", 4096, 0)
    ctypes.memmove(host, b"host", 4)
    assert cu.out("cuMemHostGetDevicePointer", ctypes.c_void_p(host), 0) == host
    device = cu.alloc(4096)
    cu.ok("cuMemcpyDtoD", device, host, 4)
    assert cu.read(device, 4) == b"host"
    assert cu.cuMemFreeHost(ctypes.c_void_p(host + 1)) == INVALID_VALUE
    cu.ok("cuMemFreeHost", ctypes.c_void_p(host))
    assert cu.cuMemFreeHost(ctypes.c_void_p(host)) == INVALID_VALUE
    assert sim.used() == 4096  # host memory takes none of the device's


def test_host_memory_is_registered_once(cu: Cu) -> None:
    buffer = ctypes.create_string_buffer(b"mine", 8192)
    address = ctypes.c_void_p(ctypes.addressof(buffer))
    cu.ok("cuMemHostRegister", address, 8192, 0)
    assert cu.cuMemHostRegister(address, 8192, 0) == "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
    device = cu.alloc(8192)
    cu.ok("cuMemcpyHtoDAsync", device, buffer, 4, 0)
    assert cu.read(device, 4) == b"mine"
    cu.ok("cuMemHostUnregister", address)
    assert cu.cuMemHostUnregister(address) == "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"


def test_managed_memory_is_accessible_from_host_and_device_and_may_exceed_the_device(cu: Cu) -> None:
    address = cu.out("cuMemAllocManaged", 16 * GIB, 1)
    ctypes.memmove(address, b"host", 4)
    assert cu.read(address, 4) == b"host"
    cu.ok("cuMemsetD8", address + 16 * GIB - 1, 9, 1)
    assert ctypes.string_at(address + 16 * GIB - 1, 1) == b"\x09"
    assert sim.used() == 0
    assert cu.cuMemAllocManaged(ctypes.byref(ctypes.c_uint64()), 4096, 7) == INVALID_VALUE
    cu.ok("cuMemFree", address)


def test_a_pointer_knows_its_allocation(cu: Cu) -> None:
    address = cu.alloc(10_000)
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    cu.ok("cuMemGetAddressRange", ctypes.byref(base), ctypes.byref(size), address + 999)
    assert (base.value, size.value) == (address, 10_000)
    kind = ctypes.c_uint()
    cu.ok("cuPointerGetAttribute", ctypes.byref(kind), 2, address + 1)
    assert kind.value == 2  # device memory
    assert cu.cuPointerGetAttribute(ctypes.byref(kind), 2, 4096) == INVALID_VALUE
    assert cu.cuMemGetAddressRange(ctypes.byref(base), None, 4096) == "CUDA_ERROR_NOT_FOUND"


def test_memory_calls_need_a_context(machine: None) -> None:
    cu = Cu()
    assert cu.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), 512) == "CUDA_ERROR_NOT_INITIALIZED"
    context = cu.start()
    cu.ok("cuCtxSetCurrent", 0)
    assert cu.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), 512) == "CUDA_ERROR_INVALID_CONTEXT"
    cu.ok("cuCtxSetCurrent", context)
    assert cu.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), 512) == SUCCESS


def test_memory_is_freed_with_its_context(cu: Cu) -> None:
    context = cu.out("cuCtxCreate", 0, 0)
    cu.alloc(MIB)
    cu.stream()
    cu.event()
    assert sim.used() == MIB
    cu.ok("cuCtxDestroy", context)
    assert sim.used() == 0
    assert (sim.census().streams, sim.census().events) == (0, 0)


def test_a_destroyed_context_that_is_current_is_an_error(two_devices: tuple[Cu, int, int]) -> None:
    cu, first, _ = two_devices
    context = cu.out("cuCtxCreate", 0, 0)
    cu.ok("cuCtxPushCurrent", first)
    cu.ok("cuCtxDestroy", context)
    cu.ok("cuCtxPopCurrent", ctypes.byref(ctypes.c_uint64()))
    assert cu.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), 512) == "CUDA_ERROR_CONTEXT_IS_DESTROYED"
    assert cu.cuCtxSetCurrent(context) == "CUDA_ERROR_INVALID_CONTEXT"
    expect("dead context")


def pool_figure(cu: Cu, pool: int, attribute: int) -> int:
    value = ctypes.c_uint64()
    cu.ok("cuMemPoolGetAttribute", pool, attribute, ctypes.byref(value))
    return value.value


def test_a_pool_keeps_memory_above_its_threshold_only_until_the_host_waits(cu: Cu) -> None:
    pool = cu.out("cuDeviceGetDefaultMemPool", 0)
    stream = cu.stream()
    address = cu.out("cuMemAllocAsync", MIB, stream)
    assert pool_figure(cu, pool, USED_CURRENT) == MIB
    cu.ok("cuMemFreeAsync", address, stream)
    assert pool_figure(cu, pool, USED_CURRENT) == 0
    assert pool_figure(cu, pool, RESERVED_CURRENT) == MIB == sim.used()
    cu.ok("cuStreamSynchronize", stream)
    assert pool_figure(cu, pool, RESERVED_CURRENT) == 0 == sim.used()
    cu.ok("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, ctypes.byref(ctypes.c_uint64(8 * MIB)))
    address = cu.out("cuMemAllocAsync", MIB, stream)
    cu.ok("cuMemFreeAsync", address, stream)
    cu.ok("cuStreamSynchronize", stream)
    assert sim.used() == MIB
    cu.ok("cuMemPoolTrimTo", pool, 0)
    assert sim.used() == 0


def test_pool_memory_may_not_be_used_or_freed_after_its_free(cu: Cu) -> None:
    address = cu.out("cuMemAllocAsync", MIB, 0)
    cu.ok("cuMemFreeAsync", address, 0)
    assert cu.cuMemFreeAsync(address, 0) == INVALID_VALUE
    assert cu.cuMemsetD8(address, 1, 1) == ILLEGAL_ADDRESS
    assert cu.cuMemFreeAsync(cu.alloc(512), 0) == INVALID_VALUE  # not from a pool


def test_a_pool_reuses_what_was_freed_on_the_same_stream_at_once(cu: Cu) -> None:
    stream = cu.stream()
    with sim.temporarily(delay=5000):
        first = cu.out("cuMemAllocAsync", MIB, stream)
        cu.ok("cuMemFreeAsync", first, stream)
        assert cu.out("cuMemAllocAsync", MIB, stream) == first
    assert sim.used() == MIB


def test_a_pool_reuses_what_another_stream_freed_behind_a_wait(cu: Cu) -> None:
    one, two = cu.stream(), cu.stream()
    with sim.temporarily(delay=5000):
        first = cu.out("cuMemAllocAsync", MIB, one)
        cu.ok("cuMemsetD8Async", first, 1, MIB, one)
        cu.ok("cuMemFreeAsync", first, one)
        second = cu.out("cuMemAllocAsync", MIB, two)
        cu.ok("cuMemsetD8Async", second, 2, MIB, two)
    assert second == first
    cu.ok("cuCtxSynchronize_v2", 0)
    assert cu.read(second, MIB) == b"\x02" * MIB


def test_a_pool_keeps_to_its_maximum(cu: Cu) -> None:
    props = PoolProps(1, 0, Location(1, 0), None, 4 * MIB)
    pool = cu.out("cuMemPoolCreate", ctypes.byref(props))
    address = ctypes.c_uint64()
    assert cu.cuMemAllocFromPoolAsync(ctypes.byref(address), 5 * MIB, pool, 0) == OUT_OF_MEMORY
    assert cu.cuMemAllocFromPoolAsync(ctypes.byref(address), 4 * MIB, pool, 0) == SUCCESS
    cu.ok("cuMemPoolDestroy", pool)  # freed with its last allocation
    cu.ok("cuMemsetD8", address.value, 1, 4 * MIB)
    cu.ok("cuMemFreeAsync", address.value, 0)
    cu.ok("cuStreamSynchronize", 0)
    assert sim.used() == 0
    assert cu.cuMemPoolTrimTo(pool, 0) == INVALID_VALUE
    expect("dead pool")


def test_a_devices_default_pool_cannot_be_destroyed(cu: Cu) -> None:
    assert cu.cuMemPoolDestroy(cu.out("cuDeviceGetDefaultMemPool", 0)) == INVALID_VALUE


def test_a_reused_piece_of_a_pool_has_the_newly_requested_size(cu: Cu) -> None:
    stream = cu.stream()
    small = cu.out("cuMemAllocAsync", 512, stream)
    cu.ok("cuMemFreeAsync", small, stream)
    large = cu.out("cuMemAllocAsync", 4096, stream)
    assert large == small
    assert cu.cuMemsetD8Async(large, 1, 4096, stream) == SUCCESS
    cu.ok("cuMemFreeAsync", large, stream)
    assert cu.out("cuMemAllocAsync", 512, stream) == small
    assert cu.cuMemsetD8Async(small, 1, 513, stream) == ILLEGAL_ADDRESS


@pytest.mark.parametrize("size", [(1 << 64) - 1, 1 << 63, 1 << 50])
def test_enormous_sizes_are_out_of_memory_and_leave_nothing_behind(cu: Cu, size: int) -> None:
    for function in ("cuMemAlloc", "cuMemHostAlloc", "cuMemAllocManaged"):
        assert getattr(cu, function)(ctypes.byref(ctypes.c_uint64()), size, 1) == OUT_OF_MEMORY
    assert cu.cuMemAllocAsync(ctypes.byref(ctypes.c_uint64()), size, 0) == OUT_OF_MEMORY
    buffer = ctypes.create_string_buffer(8)
    assert cu.cuMemcpy(ctypes.addressof(buffer), ctypes.addressof(buffer), size) == OUT_OF_MEMORY
    assert (sim.used(), sim.census().allocations, sim.census().mappings) == (0, 0, 0)


def test_a_refused_pool_allocation_keeps_no_memory(cu: Cu) -> None:
    blocking = cu.stream(non_blocking=False)
    cu.ok("cuStreamBeginCapture", blocking, 2)
    pointer = ctypes.byref(ctypes.c_uint64())
    assert cu.cuMemAllocAsync(pointer, MIB, 0) == "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
    cu.cuStreamEndCapture(blocking, pointer)
    assert pool_figure(cu, cu.out("cuDeviceGetDefaultMemPool", 0), USED_CURRENT) == 0


def test_the_65th_context_is_refused_and_not_left_behind(cu: Cu) -> None:
    before = sim.census().contexts
    made = [cu.out("cuCtxCreate", 0, 0) for _ in range(63)]
    assert cu.cuCtxCreate(ctypes.byref(ctypes.c_uint64()), 0, 0) == OUT_OF_MEMORY
    assert sim.census().contexts == before + len(made)
