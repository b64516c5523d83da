"""The rules of the driver's memory functions that the arena relies on."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator

import pytest

import arena

from ..simulated.cu import INVALID_VALUE, NOT_READY, OUT_OF_MEMORY, SUCCESS, prop
from .conftest import MIB, Gpu, check

HOLD = 0.2  # seconds that a stream is kept busy


@contextlib.contextmanager
def handles(gpu: Gpu, count: int) -> Iterator[tuple[int, list[int], int]]:
    """A reservation and handles of one granule each, for a ``with`` block."""
    gpu.needs_virtual_memory()
    granule, cu = gpu.granule, gpu.cu
    address, made = cu.reserve(count * granule), [cu.create(granule) for _ in range(count)]
    yield address, made, granule
    for handle in made:
        cu.ok("cuMemRelease", handle)
    cu.ok("cuMemAddressFree", address, count * granule)


def test_a_handle_keeps_its_bytes_while_it_is_mapped_nowhere(gpu: Gpu) -> None:
    with handles(gpu, 2) as (address, (handle, _), granule):
        gpu.cu.map(address, handle, granule)
        assert gpu.cu.allow(address, granule) == SUCCESS
        gpu.fill(address, 5, granule)
        gpu.cu.ok("cuStreamSynchronize", 0)
        gpu.cu.ok("cuMemUnmap", address, granule)
        gpu.cu.map(address + granule, handle, granule)
        assert gpu.cu.allow(address + granule, granule) == SUCCESS
        assert gpu.holds(address + granule, 5, granule)
        gpu.cu.ok("cuMemUnmap", address + granule, granule)


def test_one_call_opens_and_one_unmaps_a_run_of_mappings(gpu: Gpu) -> None:
    with handles(gpu, 3) as (address, made, granule):
        for index, handle in enumerate(made):
            gpu.cu.map(address + index * granule, handle, granule)
        assert gpu.cu.allow(address, 3 * granule) == SUCCESS
        gpu.fill(address, 6, 3 * granule)
        assert gpu.holds(address, 6, 3 * granule)
        gpu.cu.ok("cuMemUnmap", address, 3 * granule)


def test_what_the_driver_refuses(gpu: Gpu) -> None:
    with handles(gpu, 2) as (address, (first, second), granule):
        gpu.cu.map(address, first, granule)
        assert gpu.cu.cuMemMap(address, granule, 0, second, 0) != SUCCESS  # something is mapped there
        assert gpu.cu.cuMemMap(address + granule // 2, granule, 0, second, 0) == INVALID_VALUE
        assert gpu.cu.cuMemMap(address + granule, granule // 2, 0, second, 0) == INVALID_VALUE  # it is mapped whole
        gpu.cu.ok("cuMemUnmap", address, granule)


def test_memory_can_be_mapped_while_another_stream_works(gpu: Gpu) -> None:
    pool = gpu.arena(cap="128MiB", growth="2MiB")
    stream = gpu.stream()
    busy = pool.allocate(32 * MIB, stream)
    gpu.hold(stream, HOLD)
    for value in range(50):
        gpu.fill(busy.ptr, value, busy.nbytes, stream)
    start = time.perf_counter()
    others = [pool.allocate(3 * MIB) for _ in range(10)]
    mapped = time.perf_counter()
    for value, buffer in enumerate(others, 1):
        gpu.fill(buffer.ptr, value, buffer.nbytes)
    del others[::2]
    gpu.cu.ok("cuStreamSynchronize", 0)
    before = time.perf_counter()
    pool.trim()
    gpu.note("mapping 30 MiB beside a busy stream, ms", round((mapped - start) * 1e3, 3))
    gpu.note("unmapping half of it, ms", round((time.perf_counter() - before) * 1e3, 3))
    gpu.note("the stream was still busy", gpu.cu.cuStreamQuery(stream) == NOT_READY)
    assert gpu.holds(busy.ptr, 49, busy.nbytes, stream)
    assert all(gpu.holds(buffer.ptr, 2 * i, buffer.nbytes) for i, buffer in enumerate(others, 1))
    check(pool)


def test_whether_mapping_waits_for_other_streams(gpu: Gpu) -> None:
    """cuda.h leaves it open. Where a call waits, programs stall for that long."""
    stream, elsewhere, cu, took = gpu.stream(), gpu.cu.alloc(MIB), gpu.cu, {}
    with handles(gpu, 2) as (address, made, granule):
        desc = ctypes.c_uint64()
        calls = {
            "cuMemCreate": lambda: cu.ok("cuMemCreate", ctypes.byref(desc), granule, ctypes.byref(prop()), 0),
            "cuMemMap": lambda: cu.map(address, made[0], granule),
            "cuMemSetAccess": lambda: cu.allow(address, granule),
            "cuMemUnmap": lambda: cu.ok("cuMemUnmap", address, granule),
            "cuMemRelease": lambda: cu.ok("cuMemRelease", desc.value),
        }
        for name, call in calls.items():
            gpu.hold(stream, HOLD / 2)
            gpu.fill(elsewhere, len(took), MIB, stream)
            start = time.perf_counter()
            call()
            took[name] = time.perf_counter() - start
            assert gpu.holds(elsewhere, len(took) - 1, MIB, stream)
    for name, seconds in took.items():
        gpu.note(f"{name} beside a busy stream, ms", round(seconds * 1e3, 3))
    waited = [name for name, seconds in took.items() if seconds > HOLD / 3]
    gpu.note("waited for the busy stream", ", ".join(waited) or "none")
    cu.ok("cuMemFree", elsewhere)


def test_an_address_holds_the_bytes_of_the_handle_that_is_mapped_there_now(gpu: Gpu) -> None:
    """Many handles take turns at one address: an earlier one's bytes must never be seen or written."""
    with handles(gpu, 16) as (address, made, granule):
        for turn in range(3):
            for value, handle in enumerate(made, 16 * turn):
                gpu.cu.map(address, handle, granule)
                assert gpu.cu.allow(address, granule) == SUCCESS
                if turn:
                    assert gpu.holds(address, value - 16, granule)
                gpu.fill(address, value, granule)
                gpu.cu.ok("cuStreamSynchronize", 0)
                gpu.cu.ok("cuMemUnmap", address, granule)
        for index, handle in enumerate(made):
            gpu.cu.map(address + index * granule, handle, granule)
        assert gpu.cu.allow(address, 16 * granule) == SUCCESS
        assert all(gpu.holds(address + index * granule, 32 + index, granule) for index in range(16))
        gpu.cu.ok("cuMemUnmap", address, 16 * granule)


def test_free_memory_follows_handles_that_are_created_and_released(gpu: Gpu) -> None:
    """A handle takes memory when it is created, not when it is mapped. May fail on a device that others use."""
    gpu.needs_virtual_memory()
    cu, granule = gpu.cu, gpu.granule
    size = -(-64 * MIB // granule) * granule
    address = cu.reserve(size)
    before = gpu.free()
    handle = cu.create(size)
    created = gpu.free()
    cu.map(address, handle, size)
    assert cu.allow(address, size) == SUCCESS
    mapped = gpu.free()
    cu.ok("cuMemRelease", handle)  # the mapping keeps the memory
    gpu.fill(address, 1, size)
    assert gpu.holds(address, 1, size)
    released = gpu.free()
    cu.ok("cuMemUnmap", address, size)
    unmapped = gpu.free()
    cu.ok("cuMemAddressFree", address, size)
    gpu.note(
        "free memory taken by create, map, release; left by unmap, MiB",
        [(before - now) // MIB for now in (created, mapped, released, unmapped)],
    )
    assert abs(before - created - size) <= 2 * granule
    assert before - released >= size - 2 * granule
    assert abs(unmapped - released - size) <= 2 * granule


def test_more_than_the_device_has_is_out_of_memory_and_harms_nothing(gpu: Gpu) -> None:
    gpu.needs_virtual_memory()
    granule, handle, address = gpu.granule, ctypes.c_uint64(), ctypes.c_uint64()
    much = 2 * -(-gpu.total // granule) * granule
    assert gpu.cu.cuMemCreate(ctypes.byref(handle), much, ctypes.byref(prop()), 0) == OUT_OF_MEMORY
    if gpu.cu.cuMemAlloc(ctypes.byref(address), much) == SUCCESS:  # as Windows may do, with host memory
        gpu.note("cuMemAlloc of twice the device", "succeeds")
        gpu.cu.ok("cuMemFree", address.value)
    kept = gpu.cu.alloc(MIB)
    gpu.fill(kept, 1, MIB)
    assert gpu.holds(kept, 1, MIB)
    gpu.cu.ok("cuMemFree", kept)


def test_how_many_addresses_can_be_reserved_at_once(gpu: Gpu) -> None:
    """Jetsons and WSL have few."""
    gpu.needs_virtual_memory()
    granule, size, most = gpu.granule, -(-gpu.total // gpu.granule) * gpu.granule, 0
    address = ctypes.c_uint64()
    for _ in range(7):
        if gpu.cu.cuMemAddressReserve(ctypes.byref(address), size, granule, 0, 0) != SUCCESS:
            break
        gpu.cu.ok("cuMemAddressFree", address.value, size)
        most, size = size, 2 * size
    gpu.note("addresses reserved at once, GiB", round(most / 1024 / MIB, 1))


def test_pointers_into_mapped_memory_are_device_memory(gpu: Gpu) -> None:
    """CuPy, UCX and others query this. What is not documented for mapped memory is recorded."""
    names = {
        "legacy IPC": 10,
        "range starts at": 11,
        "bytes in range": 12,
        "handle types": 14,
        "RDMA": 15,
    }
    pool = gpu.arena(cap="64MiB")
    buffer = pool.allocate(3 * MIB)
    kind, ordinal, value = ctypes.c_uint(), ctypes.c_int(), ctypes.c_uint64()
    for pointer in (buffer.ptr, buffer.ptr + 3 * MIB - 1):
        gpu.cu.ok("cuPointerGetAttribute", ctypes.byref(kind), 2, pointer)
        gpu.cu.ok("cuPointerGetAttribute", ctypes.byref(ordinal), 9, pointer)
        assert (kind.value, ordinal.value) == (2, 0)
    for name, attribute in names.items():
        value.value = 0
        result = gpu.cu.cuPointerGetAttribute(ctypes.byref(value), attribute, buffer.ptr)
        shown = value.value - buffer.ptr if attribute == 11 else value.value
        gpu.note(name, shown if result == SUCCESS else result)


def test_memory_of_the_arena_has_no_handle_for_other_processes(gpu: Gpu) -> None:
    """cuIpcGetMemHandle is only for memory from cuMemAlloc. The arena relies on that, since it may unmap memory at any
    time."""
    gpu.needs_virtual_memory()
    gpu.needs("cuIpcGetMemHandle")
    buffer = gpu.arena(cap="64MiB").allocate(2 * MIB)
    handle = ctypes.create_string_buffer(64)
    assert gpu.cu.cuIpcGetMemHandle(handle, buffer.ptr) != SUCCESS


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # Python 3.12's warning about os.fork
def test_a_forked_child_cannot_use_the_driver_and_harms_nothing(gpu: Gpu) -> None:
    pool = gpu.arena(cap="64MiB")
    buffer = pool.allocate(4 * MIB)
    gpu.fill(buffer.ptr, 8, buffer.nbytes)
    child = os.fork()
    if not child:
        refused = 0
        for call in (lambda: pool.allocate(1), arena.Arena):
            with contextlib.suppress(arena.UsageError):
                call()
                continue
            refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert gpu.holds(buffer.ptr, 8, buffer.nbytes)
    pool.allocate(4 * MIB).free()
    check(pool)
