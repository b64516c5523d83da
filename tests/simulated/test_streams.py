"""Streams, events and capture: what is ordered, what is asynchronous, what is refused."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest

from arena import sim

from ..findings import expect
from .cu import ILLEGAL_ADDRESS, INVALID_VALUE, LEGACY, MIB, NOT_READY, PER_THREAD, SUCCESS, Cu, prop

SLOW = 150_000  # microseconds: longer than any call takes, also on a busy machine
CAPTURE_UNSUPPORTED = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
CAPTURE_INVALIDATED = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
GLOBAL_MODE, THREAD_LOCAL_MODE, RELAXED_MODE = 0, 1, 2


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
        """The first numbers of splitmix64, as shares of the delay."""
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


def test_streams_run_side_by_side(cu: Cu) -> None:
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


def test_the_null_stream_is_the_legacy_one(cu: Cu) -> None:
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


def test_functions_are_found_in_a_form_for_the_per_thread_stream(cu: Cu) -> None:
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


def test_elapsed_time_needs_two_timed_events_that_were_reached(cu: Cu) -> None:
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


def test_a_fault_on_the_device_stays_with_the_context_until_it_is_reset(cu: Cu) -> None:
    stream = cu.stream()
    address, handle = cu.mapped()
    sim.configure(races=False)
    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 1, 64, stream)
        cu.ok("cuMemUnmap", address, 2 * MIB)  # too early, and nobody waits
        assert cu.cuStreamSynchronize(stream) == ILLEGAL_ADDRESS
    assert cu.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), 512) == ILLEGAL_ADDRESS
    cu.ok("cuDevicePrimaryCtxReset", 0)
    cu.start()
    assert cu.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), 512) == SUCCESS
    cu.ok("cuMemRelease", handle)


def test_a_context_that_is_retained_while_its_last_user_waits_to_end_it_goes_on(cu: Cu) -> None:
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


def begin(cu: Cu, stream: int, mode: int = GLOBAL_MODE) -> None:
    cu.ok("cuStreamBeginCapture", stream, mode)


def end(cu: Cu, stream: int) -> tuple[str, int]:
    graph = ctypes.c_uint64()
    return cu.cuStreamEndCapture(stream, ctypes.byref(graph)), graph.value


def test_captured_work_runs_when_its_graph_is_launched(cu: Cu) -> None:
    stream, side, fork, join, address = cu.stream(), cu.stream(), cu.event(), cu.event(), cu.alloc(4096)
    begin(cu, stream)
    cu.ok("cuMemsetD8Async", address, 7, 64, stream)
    cu.ok("cuEventRecord", fork, stream)
    cu.ok("cuStreamWaitEvent", side, fork, 0)
    cu.ok("cuMemcpyDtoDAsync", address + 1024, address, 64, side)
    cu.ok("cuEventRecord", join, side)
    cu.ok("cuStreamWaitEvent", stream, join, 0)
    status = ctypes.c_uint()
    cu.ok("cuStreamIsCapturing", side, ctypes.byref(status))
    assert status.value == 1
    result, graph = end(cu, stream)
    assert result == SUCCESS
    assert cu.read(address, 64) == bytes(64)  # nothing has run
    launched = cu.out("cuGraphInstantiateWithFlags", graph, 0)
    cu.ok("cuGraphLaunch", launched, stream)
    cu.ok("cuStreamSynchronize", stream)
    assert cu.read(address + 1024, 64) == b"\x07" * 64
    cu.ok("cuGraphExecDestroy", launched)
    cu.ok("cuGraphDestroy", graph)


@pytest.mark.parametrize(
    "call",
    [
        lambda cu, stream: cu.cuStreamSynchronize(stream),
        lambda cu, stream: cu.cuStreamQuery(stream),
        lambda cu, stream: cu.cuCtxSynchronize_v2(0),
        lambda cu, stream: cu.cuEventQuery(cu.event()),
        lambda cu, stream: cu.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), 512),
        lambda cu, stream: cu.cuMemcpyHtoD(cu.reserve(2 * MIB), b"x", 1),
    ],
    ids=["stream synchronize", "stream query", "context synchronize", "event query", "allocate", "copy"],
)
def test_nothing_waits_or_asks_while_a_stream_is_captured(cu: Cu, call: object) -> None:
    stream = cu.stream()
    begin(cu, stream)
    assert call(cu, stream) == CAPTURE_UNSUPPORTED  # type: ignore[operator]
    assert end(cu, stream)[0] == CAPTURE_INVALIDATED


@pytest.mark.parametrize("call", ["create", "map", "set access", "unmap"])
def test_nothing_is_mapped_while_a_stream_is_captured(cu: Cu, call: str) -> None:
    stream = cu.stream()
    mapped, _ = cu.mapped()
    free, handle = cu.reserve(2 * MIB), cu.create()
    begin(cu, stream)
    result = {
        "create": lambda: cu.cuMemCreate(ctypes.byref(ctypes.c_uint64()), 2 * MIB, ctypes.byref(prop()), 0),
        "map": lambda: cu.cuMemMap(free, 2 * MIB, 0, handle, 0),
        "set access": lambda: cu.allow(mapped),
        "unmap": lambda: cu.cuMemUnmap(mapped, 2 * MIB),
    }[call]()
    assert result == CAPTURE_UNSUPPORTED
    assert end(cu, stream)[0] == CAPTURE_INVALIDATED


def test_a_thread_in_relaxed_mode_may_map_while_a_stream_is_captured(cu: Cu) -> None:
    stream, mode = cu.stream(), ctypes.c_uint(RELAXED_MODE)
    begin(cu, stream)
    cu.ok("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert mode.value == GLOBAL_MODE
    cu.create()
    cu.ok("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert end(cu, stream)[0] == SUCCESS


@pytest.mark.parametrize("call", ["cuEventQuery", "cuEventSynchronize"])
def test_asking_about_a_captured_event_is_refused_and_invalidates_the_capture(cu: Cu, call: str) -> None:
    stream, event, ask = cu.stream(), cu.event(), getattr(cu, call)
    begin(cu, stream, RELAXED_MODE)
    cu.ok("cuEventRecord", event, stream)
    assert ask(event) == "CUDA_ERROR_CAPTURED_EVENT"
    assert end(cu, stream)[0] == CAPTURE_INVALIDATED
    begin(cu, stream, RELAXED_MODE)
    assert ask(event) == "CUDA_ERROR_CAPTURED_EVENT"  # of a capture that is over: it harms no other
    assert end(cu, stream)[0] == SUCCESS


def test_the_legacy_stream_is_not_captured_and_does_not_wait_for_a_captured_stream(cu: Cu) -> None:
    stream, address = cu.stream(non_blocking=False), cu.alloc(512)
    assert cu.cuStreamBeginCapture(LEGACY, 0) == CAPTURE_UNSUPPORTED
    begin(cu, stream, RELAXED_MODE)
    assert cu.cuMemsetD8Async(address, 1, 1, LEGACY) == "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
    assert end(cu, stream)[0] == CAPTURE_INVALIDATED


def test_the_legacy_stream_knows_of_captures_that_it_would_wait_for(cu: Cu) -> None:
    status = ctypes.c_uint()
    for stream in (cu.stream(non_blocking=False), PER_THREAD):
        begin(cu, stream)
        assert cu.cuStreamIsCapturing(LEGACY, ctypes.byref(status)) == "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
        info = cu.cuStreamGetCaptureInfo(LEGACY, ctypes.byref(status), None, None, None, None)
        assert info == "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
        assert end(cu, stream)[0] == SUCCESS  # to ask spoils nothing
    other = cu.stream()
    begin(cu, other)
    assert (cu.cuStreamIsCapturing(LEGACY, ctypes.byref(status)), status.value) == (SUCCESS, 0)
    assert end(cu, other)[0] == SUCCESS


@pytest.mark.parametrize("of_the_capture", [True, False])
def test_a_streams_properties_may_be_asked_for_while_one_is_captured(cu: Cu, of_the_capture: bool) -> None:
    stream, other, answer = cu.stream(), cu.stream(), ctypes.c_uint64()
    begin(cu, stream)
    for call in ("cuStreamGetId", "cuStreamGetFlags", "cuStreamGetPriority", "cuStreamGetDevice"):
        cu.ok(call, stream if of_the_capture else other, ctypes.byref(answer))
    cu.ok("cuStreamGetCtx", stream if of_the_capture else other, ctypes.byref(answer), None)
    assert end(cu, stream)[0] == SUCCESS


def test_a_stream_forked_into_a_capture_must_be_joined(cu: Cu) -> None:
    stream, side, event, address = cu.stream(), cu.stream(), cu.event(), cu.alloc(512)
    begin(cu, stream)
    cu.ok("cuEventRecord", event, stream)
    cu.ok("cuStreamWaitEvent", side, event, 0)
    cu.ok("cuMemsetD8Async", address, 1, 1, side)
    assert end(cu, stream)[0] == "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"
    assert cu.cuStreamSynchronize(stream) == SUCCESS  # the capture is over


def test_captured_work_may_not_depend_on_work_outside(cu: Cu) -> None:
    stream, other, event, address = cu.stream(), cu.stream(), cu.event(), cu.alloc(512)
    cu.ok("cuMemsetD8Async", address, 1, 1, other)
    cu.ok("cuEventRecord", event, other)
    begin(cu, stream)
    assert cu.cuStreamWaitEvent(stream, event, 0) == "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"


def test_a_capture_is_ended_where_it_began(cu: Cu) -> None:
    stream, side, event = cu.stream(), cu.stream(), cu.event()
    assert end(cu, stream)[0] == "CUDA_ERROR_ILLEGAL_STATE"
    begin(cu, stream)
    cu.ok("cuEventRecord", event, stream)
    cu.ok("cuStreamWaitEvent", side, event, 0)
    assert end(cu, side)[0] == "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"
    begin(cu, third := cu.stream(), THREAD_LOCAL_MODE)
    results: list[str] = []
    context = cu.out("cuCtxGetCurrent")

    def elsewhere() -> None:
        cu.ok("cuCtxSetCurrent", context)
        results.append(end(cu, third)[0])

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert results == ["CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"]


def test_stream_flags_are_checked(cu: Cu) -> None:
    assert cu.cuStreamCreate(ctypes.byref(ctypes.c_uint64()), 2) == INVALID_VALUE
    assert cu.cuEventCreate(ctypes.byref(ctypes.c_uint64()), 8) == INVALID_VALUE
    assert cu.cuEventCreate(ctypes.byref(ctypes.c_uint64()), 4) == INVALID_VALUE  # interprocess and timed


@pytest.mark.parametrize("what", ["stream", "context"])
def test_a_capture_ends_with_its_stream_or_context(cu: Cu, what: str) -> None:
    context = cu.out("cuCtxCreate", 0, 0)
    stream = cu.stream()
    begin(cu, stream)
    if what == "stream":
        cu.ok("cuStreamDestroy", stream)
    cu.ok("cuCtxDestroy", context)
    assert cu.cuMemAlloc(ctypes.byref(ctypes.c_uint64()), 512) == SUCCESS


def test_an_event_of_a_capture_that_has_ended_draws_nobody_in(cu: Cu) -> None:
    stream, other, event, address = cu.stream(), cu.stream(), cu.event(), cu.alloc(512)
    begin(cu, stream)
    cu.ok("cuEventRecord", event, stream)
    assert end(cu, stream)[0] == SUCCESS
    assert cu.cuStreamWaitEvent(other, event, 0) == "CUDA_ERROR_CAPTURED_EVENT"
    cu.ok("cuMemsetD8Async", address, 1, 1, other)
    assert cu.cuStreamSynchronize(other) == SUCCESS


def test_a_synchronous_call_is_refused_in_a_captured_stream(cu: Cu) -> None:
    address = cu.alloc(512)
    begin(cu, PER_THREAD, RELAXED_MODE)
    found = ctypes.c_void_p()
    cu.lib.cuGetProcAddress_v2(b"cuMemsetD8", ctypes.byref(found), 13000, ctypes.c_uint64(2), None)
    assert found.value is not None
    fill = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t)(found.value)
    assert cu.name(fill(address, 1, 512)) == CAPTURE_UNSUPPORTED
    assert end(cu, PER_THREAD)[0] == CAPTURE_INVALIDATED


def test_a_callback_is_called_after_a_fault_and_told_of_it(cu: Cu) -> None:
    sim.configure(races=False)
    stream, told = cu.stream(), []
    address, _ = cu.mapped()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    def callback(stream: int | None, status: int, data: int | None) -> None:
        told.append(status)

    with sim.temporarily(delay=SLOW):
        cu.ok("cuMemsetD8Async", address, 1, 64, stream)
        cu.ok("cuStreamAddCallback", stream, callback, 0, 0)
        cu.ok("cuMemUnmap", address, 2 * MIB)
        assert cu.cuStreamSynchronize(stream) == ILLEGAL_ADDRESS
    assert told == [700]


def test_two_launches_of_one_graph_run_one_after_the_other(cu: Cu) -> None:
    one, two, address = cu.stream(), cu.stream(), cu.alloc(512)
    begin(cu, one)
    cu.ok("cuMemsetD8Async", address, 1, 512, one)
    graph = cu.out("cuGraphInstantiateWithFlags", end(cu, one)[1], 0)
    cu.ok("cuGraphLaunch", graph, one)
    cu.ok("cuGraphLaunch", graph, two)
    cu.ok("cuCtxSynchronize_v2", 0)
    assert sim.races() == []


def test_a_graph_whose_memory_is_gone_is_launched_and_faults_when_it_runs(cu: Cu) -> None:
    stream, first, second = cu.stream(), cu.alloc(512), cu.alloc(512)
    begin(cu, stream)
    cu.ok("cuMemsetD8Async", first, 1, 512, stream)
    cu.ok("cuMemsetD8Async", second, 1, 512, stream)
    graph = cu.out("cuGraphInstantiateWithFlags", end(cu, stream)[1], 0)
    cu.ok("cuMemFree", second)
    with sim.temporarily(delay=SLOW):
        assert cu.cuGraphLaunch(graph, stream) == SUCCESS
        assert cu.cuStreamQuery(stream) == NOT_READY
        [found] = expect("graph memory gone")
        assert (found.call, found.handle) == ("cuGraphLaunch", graph)
        assert f"cuMemsetD8Async in it touches [{second:#x}, {second + 512:#x})" in found.text
        assert cu.cuStreamSynchronize(stream) == ILLEGAL_ADDRESS
    assert cu.cuStreamQuery(stream) == ILLEGAL_ADDRESS  # for good
