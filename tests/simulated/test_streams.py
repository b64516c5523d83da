"""Streams and events: what is ordered, what is asynchronous, what is refused."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest

from arena import sim

from ..findings import expect
from .cu import ILLEGAL_ADDRESS, INVALID_VALUE, LEGACY, MIB, NOT_READY, PER_THREAD, SUCCESS, Cu

SLOW = 150_000  # microseconds: longer than any call takes, even on a busy machine


def test_work_is_asynchronous_and_a_synchronisation_waits_for_it(cu: Cu) -> None:
    stream, address = cu.stream(), cu.alloc(4096)
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 1, 4096, stream)
        assert cu.cuStreamQuery(stream) == NOT_READY
        cu.ok("cuStreamSynchronize", stream)
        assert cu.cuStreamQuery(stream) == SUCCESS
    assert cu.read(address, 1) == b"\x01"


def test_delays_are_random_with_a_seed_and_the_same_in_every_run(cu: Cu) -> None:
    def shares(seed: int) -> list[float]:
        """The first numbers of splitmix64, as fractions of the delay."""
        found, mask = [], (1 << 64) - 1
        for i in range(1, 5):
            x = (seed + i * 0x9E3779B97F4A7C15) & mask
            x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
            x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
            found.append((x ^ (x >> 31)) % (SLOW + 1) / SLOW)
        return found

    stream, address, took = cu.stream(), cu.alloc(4096), []
    assert min(shares(1)) < 0.3 < 0.7 < max(shares(1))
    with sim.temporarily(delay=SLOW, seed=1):
        for _ in range(4):
            begin = time.perf_counter()
            cu.ok("cuMemsetD8Async", address, 1, 4096, stream)
            cu.ok("cuStreamSynchronize", stream)
            took.append((time.perf_counter() - begin) / (SLOW * 1e-6))
    assert all(real >= share for real, share in zip(took, shares(1), strict=True)), (took, shares(1))
    assert min(took) < 0.9


def test_work_of_one_stream_runs_in_order(cu: Cu) -> None:
    stream, address = cu.stream(), cu.alloc(8 * MIB)
    for i in range(50):  # large and small mixed: on a worker and on this thread
        cu.ok("cuMemsetD8Async", address, i, 8 * MIB if i % 5 == 0 else 64, stream)
        cu.ok("cuMemcpyDtoDAsync", address + 4 * MIB, address, 64, stream)
    cu.ok("cuStreamSynchronize", stream)
    assert cu.read(address, 64) == cu.read(address + 4 * MIB, 64) == bytes([49] * 64)


def test_streams_run_in_parallel(cu: Cu) -> None:
    streams = [cu.stream() for _ in range(4)]
    address = cu.alloc(4096)
    with sim.temporarily(delay=SLOW):
        begin = time.perf_counter()
        for i, stream in enumerate(streams):
            cu.ok("cuMemsetD8Async", address + 512 * i, 1, 512, stream)
        cu.ok("cuCtxSynchronize_v2", 0)
        took = time.perf_counter() - begin
    assert SLOW * 1e-6 <= took < 3.5 * SLOW * 1e-6


def test_a_stream_waits_for_an_event_of_another(cu: Cu) -> None:
    one, two, event, address = cu.stream(), cu.stream(), cu.event(), cu.alloc(4096)
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 1, 4096, one)
        cu.ok("cuEventRecord", event, one)
        cu.ok("cuStreamWaitEvent", two, event, 0)
        cu.ok("cuMemcpyDtoDAsync", address + 2048, address, 64, two)
        cu.ok("cuStreamSynchronize", two)
    assert cu.read(address + 2048, 64) == b"\x01" * 64


@pytest.mark.parametrize("first_is_legacy", [True, False])
def test_the_legacy_stream_and_blocking_streams_wait_for_each_other(cu: Cu, first_is_legacy: bool) -> None:
    blocking, address = cu.stream(non_blocking=False), cu.alloc(4096)
    first, second = (LEGACY, blocking) if first_is_legacy else (blocking, LEGACY)
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 1, 64, first)
        cu.ok("cuMemcpyDtoDAsync", address + 2048, address, 64, second)
        cu.ok("cuStreamSynchronize", second)
    assert cu.read(address + 2048, 64) == b"\x01" * 64


def test_the_null_stream_is_the_legacy_stream(cu: Cu) -> None:
    assert cu.cuStreamGetId(0, ctypes.byref(null := ctypes.c_uint64())) == SUCCESS
    assert cu.cuStreamGetId(LEGACY, ctypes.byref(legacy := ctypes.c_uint64())) == SUCCESS
    assert null.value == legacy.value


def test_the_per_thread_stream_of_two_threads_is_two_streams(cu: Cu) -> None:
    context = cu.out("cuCtxGetCurrent")
    ids = []

    def ask() -> None:
        cu.ok("cuCtxSetCurrent", context)
        number = ctypes.c_uint64()
        cu.ok("cuStreamGetId", PER_THREAD, ctypes.byref(number))
        ids.append(number.value)

    ask()
    ask()
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert ids[0] == ids[1] != ids[2]


def test_functions_have_a_form_for_the_per_thread_stream(cu: Cu) -> None:
    found = ctypes.c_void_p()
    lookup = cu.lib.cuGetProcAddress_v2
    assert lookup(b"cuStreamGetId", ctypes.byref(found), 13000, ctypes.c_uint64(2), None) == 0
    assert found.value is not None
    per_thread = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64))(found.value)
    null, two = ctypes.c_uint64(), ctypes.c_uint64()
    assert per_thread(None, ctypes.byref(null)) == 0
    cu.ok("cuStreamGetId", PER_THREAD, ctypes.byref(two))
    assert null.value == two.value


def test_pageable_memory_may_be_changed_as_soon_as_a_copy_from_it_returns(cu: Cu) -> None:
    stream, address = cu.stream(), cu.alloc(4096)
    buffer = ctypes.create_string_buffer(b"first")
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemcpyHtoDAsync", address, buffer, 5, stream)
        assert cu.cuStreamQuery(stream) == NOT_READY
        buffer.value = b"later"
        cu.ok("cuStreamSynchronize", stream)
    assert cu.read(address, 5) == b"first"


def test_a_copy_to_pageable_memory_is_done_when_it_returns(cu: Cu) -> None:
    stream, address = cu.stream(), cu.alloc(4096)
    buffer = ctypes.create_string_buffer(4)
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 65, 4, stream)
        cu.ok("cuMemcpyDtoHAsync", buffer, address, 4, stream)
        assert buffer.raw == b"AAAA"


def test_a_destroyed_stream_still_does_its_work(cu: Cu) -> None:
    stream, address = cu.stream(), cu.alloc(4096)
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 1, 64, stream)
        cu.ok("cuStreamDestroy", stream)
        assert cu.cuStreamSynchronize(stream) == "CUDA_ERROR_INVALID_HANDLE"
        expect("dead stream")
        cu.ok("cuCtxSynchronize_v2", 0)
    assert cu.read(address, 64) == b"\x01" * 64


def test_stale_handles_are_noticed(cu: Cu) -> None:
    stream, event = cu.stream(), cu.event()
    cu.ok("cuEventDestroy", event)
    cu.ok("cuStreamDestroy", stream)
    assert cu.cuStreamDestroy(stream) == "CUDA_ERROR_INVALID_HANDLE"
    assert cu.cuEventRecord(event, 0) == "CUDA_ERROR_INVALID_HANDLE"
    assert cu.cuEventQuery(0xDEAD) == "CUDA_ERROR_INVALID_HANDLE"
    expect("dead stream", "dead event", "unknown handle")


def test_an_event_that_was_never_recorded_is_complete(cu: Cu) -> None:
    event = cu.event()
    assert cu.cuEventQuery(event) == SUCCESS
    assert cu.cuEventSynchronize(event) == SUCCESS
    assert cu.cuStreamWaitEvent(0, event, 0) == SUCCESS


def test_no_time_elapses_between_two_devices(two_devices: tuple[Cu, int, int]) -> None:
    cu, _, second = two_devices
    stream, start, time_ms = cu.stream(), cu.event(), ctypes.c_float()
    cu.ok("cuEventRecord", start, stream)
    cu.ok("cuStreamSynchronize", stream)
    cu.ok("cuCtxSetCurrent", second)
    other, end = cu.stream(), cu.event()
    cu.ok("cuEventRecord", end, other)
    cu.ok("cuStreamSynchronize", other)
    assert cu.cuEventElapsedTime(ctypes.byref(time_ms), start, end) == "CUDA_ERROR_INVALID_HANDLE"


def test_elapsed_time_needs_two_timed_and_completed_events(cu: Cu) -> None:
    start, end, stream, time_ms = cu.event(), cu.event(), cu.stream(), ctypes.c_float()
    elapsed = lambda a, b: cu.cuEventElapsedTime(ctypes.byref(time_ms), a, b)  # noqa: E731
    assert elapsed(start, end) == "CUDA_ERROR_INVALID_HANDLE"
    with sim.temporarily(delay=SLOW):
        cu.ok("cuEventRecord", start, stream)
        cu.ok("cuEventRecord", end, stream)
        assert elapsed(start, end) == NOT_READY
        cu.ok("cuEventSynchronize", end)
    assert elapsed(start, end) == SUCCESS
    assert 0.9 * SLOW / 1000 < time_ms.value < 10 * SLOW / 1000
    untimed = cu.out("cuEventCreate", 2)
    cu.ok("cuEventRecord", untimed, 0)
    assert elapsed(start, untimed) == "CUDA_ERROR_INVALID_HANDLE"


def test_the_time_between_events_is_the_same_in_every_run_while_values_are_tracked(cu: Cu) -> None:
    start, end, stream, time_ms = cu.event(), cu.event(), cu.stream(), ctypes.c_float()
    buffer = cu.alloc(64)
    with sim.temporarily(values=True, delay=SLOW):
        cu.ok("cuEventRecord", start, stream)
        for _ in range(3):
            cu.ok("cuMemsetD8Async", buffer, 1, 64, stream)
        cu.ok("cuEventRecord", end, stream)
        cu.ok("cuEventSynchronize", end)
        cu.ok("cuEventElapsedTime", ctypes.byref(time_ms), start, end)
        assert round(time_ms.value * 1000) == 4  # a microsecond for each, the event included
        cu.ok("cuEventElapsedTime", ctypes.byref(time_ms), end, start)
        assert round(time_ms.value * 1000) == -4
    cu.ok("cuMemFree", buffer)


def test_an_event_is_recorded_in_its_own_context_only(two_devices: tuple[Cu, int, int]) -> None:
    cu, _, second = two_devices
    event = cu.event()
    cu.ok("cuCtxSetCurrent", second)
    assert cu.cuEventRecord(event, cu.stream()) == "CUDA_ERROR_INVALID_HANDLE"
    assert cu.cuStreamWaitEvent(cu.stream(), event, 0) == SUCCESS


def test_a_host_function_runs_in_order_and_may_not_call_the_driver(cu: Cu) -> None:
    stream, address, seen = cu.stream(), cu.alloc(4096), []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def host(data: int | None) -> None:
        seen.append((data, cu.cuCtxSynchronize_v2(0)))

    with sim.temporarily(delay=1000):
        cu.ok("cuMemsetD8Async", address, 1, 64, stream)
        cu.ok("cuLaunchHostFunc", stream, host, 42)
        assert seen == []
        cu.ok("cuStreamSynchronize", stream)
    assert seen == [(42, "CUDA_ERROR_NOT_PERMITTED")]


def test_a_device_fault_stays_with_the_context_until_it_is_reset(cu: Cu) -> None:
    stream = cu.stream()
    address, handle = cu.mapped()
    sim.configure(races=False)
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 1, 64, stream)
        cu.ok("cuMemUnmap", address, 2 * MIB)  # too early, and nothing waits
        assert cu.cuStreamSynchronize(stream) == ILLEGAL_ADDRESS
    assert cu.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), 512) == ILLEGAL_ADDRESS
    cu.ok("cuDevicePrimaryCtxReset", 0)
    cu.start()
    assert cu.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), 512) == SUCCESS
    cu.ok("cuMemRelease", handle)


def test_a_context_retained_while_its_last_user_waits_to_end_it_stays(cu: Cu) -> None:
    stream, address = cu.stream(), cu.alloc(4096)
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 1, 4096, stream)
        last = threading.Thread(target=cu.cuDevicePrimaryCtxRelease, args=(0,))
        last.start()
        while cu.cuMemGetInfo(*map(ctypes.byref, (ctypes.c_size_t(), ctypes.c_size_t()))) == SUCCESS:
            time.sleep(0.001)  # until it waits
        context = cu.out("cuDevicePrimaryCtxRetain", 0)
        cu.ok("cuCtxSetCurrent", context)
        assert cu.cuStreamQuery(stream) == NOT_READY
        last.join()
    assert cu.read(address, 1) == b"\x01"


def test_stream_flags_are_checked(cu: Cu) -> None:
    assert cu.cuStreamCreate(ctypes.byref(ctypes.c_uint64()), 2) == INVALID_VALUE
    assert cu.cuEventCreate(ctypes.byref(ctypes.c_uint64()), 8) == INVALID_VALUE
    assert cu.cuEventCreate(ctypes.byref(ctypes.c_uint64()), 4) == INVALID_VALUE  # interprocess and timed


def test_a_callback_is_called_after_a_fault_with_its_error(cu: Cu) -> None:
    sim.configure(races=False)
    stream, received = cu.stream(), []
    address, _ = cu.mapped()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    def callback(stream: int | None, status: int, data: int | None) -> None:
        received.append(status)

    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 1, 64, stream)
        cu.ok("cuStreamAddCallback", stream, callback, 0, 0)
        cu.ok("cuMemUnmap", address, 2 * MIB)
        assert cu.cuStreamSynchronize(stream) == ILLEGAL_ADDRESS
    assert received == [700]
