"""Events that concern a whole context: cuCtxRecordEvent and cuCtxWaitEvent."""

from __future__ import annotations

import ctypes
import time

import pytest

from arena import sim

from ..findings import expect
from .cu import LEGACY, NOT_READY, PER_THREAD, SUCCESS, Cu
from .test_capture import CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, GLOBAL_MODE, RELAXED_MODE, begin, end
from .test_streams import SLOW

INVALID_HANDLE = "CUDA_ERROR_INVALID_HANDLE"


@pytest.fixture
def context(cu: Cu) -> int:
    return cu.out("cuCtxGetCurrent")


def fill(cu: Cu, address: int, stream: int, value: int = 1) -> None:
    cu.ok("cuMemsetD8Async", address, value, 64, stream)


def test_a_context_event_waits_for_all_streams_of_the_context(cu: Cu, context: int) -> None:
    event, streams = cu.event(), [cu.stream(), cu.stream(non_blocking=False), PER_THREAD]
    addresses = [cu.alloc(512) for _ in streams]
    for stream, address in zip(streams, addresses, strict=True):
        with sim.temporarily(delay=SLOW):
            fill(cu, address, stream)
        cu.ok("cuCtxRecordEvent", context, event)
        assert cu.cuEventQuery(event) == NOT_READY
        cu.ok("cuEventSynchronize", event)
        assert cu.cuEventQuery(event) == cu.cuStreamQuery(stream) == SUCCESS


def test_a_context_event_covers_streams_that_were_destroyed_with_work_queued(cu: Cu, context: int) -> None:
    event, stream = cu.event(), cu.stream()
    address, handle = cu.mapped()
    with sim.temporarily(delay=SLOW):
        fill(cu, address, stream)
    cu.ok("cuStreamDestroy", stream)
    cu.ok("cuCtxRecordEvent", context, event)
    assert cu.cuEventQuery(event) == NOT_READY
    cu.ok("cuEventSynchronize", event)
    cu.ok("cuMemUnmap", address, 2 << 20)  # the race checker knows that the host has waited
    cu.ok("cuMemRelease", handle)
    assert sim.races() == []


def test_a_context_event_does_not_cover_later_work(cu: Cu, context: int) -> None:
    event, stream = cu.event(), cu.stream()
    address, _ = cu.mapped()
    cu.ok("cuCtxRecordEvent", context, event)
    with sim.temporarily(delay=SLOW):
        fill(cu, address, stream)
        assert cu.cuEventSynchronize(event) == SUCCESS
        assert cu.cuStreamQuery(stream) == NOT_READY
    cu.ok("cuMemUnmap", address, 2 << 20)
    assert [race.kind for race in sim.races()] == ["removed"]
    cu.cuStreamSynchronize(stream)
    sim.clear_races()


def test_recording_a_context_event_orders_no_streams(cu: Cu, context: int) -> None:
    event, one, two, address = cu.event(), cu.stream(), cu.stream(), cu.alloc(512)
    with sim.temporarily(delay=1000):
        fill(cu, address, one)
        cu.ok("cuCtxRecordEvent", context, event)
        fill(cu, address, two)
        cu.ok("cuCtxSynchronize_v2", 0)
    assert [race.kind for race in sim.races()] == ["race"]
    sim.clear_races()


def test_a_stream_that_waits_for_a_context_event_is_ordered_after_all_streams(cu: Cu, context: int) -> None:
    event, streams, last, address = cu.event(), [cu.stream() for _ in range(3)], cu.stream(), cu.alloc(4096)
    with sim.temporarily(delay=1000):
        for i, stream in enumerate(streams):
            cu.ok("cuMemsetD8Async", address + 1024 * i, 7, 1024, stream)
        cu.ok("cuCtxRecordEvent", context, event)
        cu.ok("cuStreamWaitEvent", last, event, 0)
        cu.ok("cuMemcpyDtoDAsync", address + 3072, address + 2048, 1024, last)
        cu.ok("cuMemsetD8Async", address, 1, 3072, last)
        cu.ok("cuStreamSynchronize", last)
    assert cu.read(address + 3072, 1024) == b"\x07" * 1024
    assert sim.races() == []


def test_a_context_event_has_the_time_of_the_last_work(cu: Cu, context: int) -> None:
    start, finish, stream, address, took = cu.event(), cu.event(), cu.stream(), cu.alloc(512), ctypes.c_float()
    cu.ok("cuCtxRecordEvent", context, start)
    with sim.temporarily(delay=SLOW):
        fill(cu, address, stream)
    cu.ok("cuCtxRecordEvent", context, finish)
    assert cu.cuEventElapsedTime(ctypes.byref(took), start, finish) == NOT_READY
    cu.ok("cuEventSynchronize", finish)
    cu.ok("cuEventElapsedTime", ctypes.byref(took), start, finish)
    assert took.value >= 0.9 * SLOW / 1000


def test_a_context_event_belongs_to_its_context(two_devices: tuple[Cu, int, int]) -> None:
    cu, first, second = two_devices
    event = cu.event()
    assert cu.cuCtxRecordEvent(second, event) == INVALID_HANDLE
    assert cu.cuCtxRecordEvent(0, event) == cu.cuCtxRecordEvent(0xDEAD, event) == "CUDA_ERROR_INVALID_CONTEXT"
    expect("unknown handle")
    assert cu.cuCtxRecordEvent(first, event) == SUCCESS
    assert cu.cuCtxWaitEvent(second, event) == SUCCESS  # which may belong to another context


@pytest.mark.parametrize("mode", [GLOBAL_MODE, RELAXED_MODE])
@pytest.mark.parametrize("call", ["cuCtxRecordEvent", "cuCtxWaitEvent"])
def test_a_context_event_invalidates_every_capture_in_the_context(cu: Cu, context: int, call: str, mode: int) -> None:
    one, two, event, thread_mode = cu.stream(), cu.stream(), cu.event(), ctypes.c_uint(RELAXED_MODE)
    begin(cu, one, mode)
    begin(cu, two, mode)
    cu.ok("cuThreadExchangeStreamCaptureMode", ctypes.byref(thread_mode))  # which does not help
    assert getattr(cu, call)(context, event) == CAPTURE_UNSUPPORTED
    cu.ok("cuThreadExchangeStreamCaptureMode", ctypes.byref(thread_mode))
    assert end(cu, one)[0] == end(cu, two)[0] == CAPTURE_INVALIDATED


def test_captures_in_another_context_are_left_alone(two_devices: tuple[Cu, int, int]) -> None:
    cu, first, second = two_devices
    event, stream = cu.event(), cu.stream()
    cu.ok("cuCtxSetCurrent", second)
    other = cu.event()
    cu.ok("cuCtxSetCurrent", first)
    begin(cu, stream)
    assert cu.cuCtxRecordEvent(second, other) == SUCCESS
    cu.ok("cuEventRecord", event, stream)
    assert end(cu, stream)[0] == SUCCESS


def test_waiting_for_a_captured_event_invalidates_its_capture(two_devices: tuple[Cu, int, int]) -> None:
    cu, _, second = two_devices
    event, stream = cu.event(), cu.stream()
    begin(cu, stream)
    cu.ok("cuEventRecord", event, stream)
    assert cu.cuCtxWaitEvent(second, event) == CAPTURE_UNSUPPORTED
    assert end(cu, stream)[0] == CAPTURE_INVALIDATED


def test_a_context_that_waits_holds_back_all_later_work(cu: Cu, context: int) -> None:
    busy, event, address = cu.stream(), cu.event(), cu.alloc(4096)
    before = cu.stream()
    with sim.temporarily(delay=SLOW):
        fill(cu, address, busy, 7)
    cu.ok("cuEventRecord", event, busy)
    began = time.perf_counter()
    cu.ok("cuCtxWaitEvent", context, event)
    assert time.perf_counter() - began < SLOW * 1e-6  # on the device, not here
    for i, stream in enumerate((before, cu.stream(), LEGACY, PER_THREAD), start=1):  # old streams and new ones
        cu.ok("cuMemcpyDtoDAsync", address + 512 * i, address, 64, stream)
    cu.ok("cuCtxSynchronize_v2", 0)
    assert all(cu.read(address + 512 * i, 64) == b"\x07" * 64 for i in range(1, 5))
    assert sim.races() == []


def test_work_queued_before_a_context_waits_is_not_held_back(cu: Cu, context: int) -> None:
    one, two, event, address = cu.stream(), cu.stream(), cu.event(), cu.alloc(4096)
    fill(cu, address, two)
    with sim.temporarily(delay=1000):
        fill(cu, address + 512, one)
    cu.ok("cuEventRecord", event, one)
    cu.ok("cuCtxWaitEvent", context, event)
    cu.ok("cuCtxWaitEvent", context, cu.event())  # never recorded: nothing to wait for
    assert cu.cuStreamQuery(two) == SUCCESS


def test_a_context_event_costs_what_an_event_does(cu: Cu, context: int) -> None:
    event = cu.event()
    sim.reset_counts()
    cu.ok("cuCtxRecordEvent", context, event)
    assert (sim.clock(), sim.calls("cuCtxRecordEvent")) == (1, 1)
    cu.ok("cuMemGetInfo", *map(ctypes.byref, (ctypes.c_size_t(), ctypes.c_size_t())))
    assert (sim.clock(), sim.calls("cuMemGetInfo")) == (11, 1)


def test_a_context_that_ends_destroys_its_recorded_events(cu: Cu) -> None:
    context = cu.out("cuCtxCreate", 0, 0)
    event, stream, address = cu.event(), cu.stream(), cu.alloc(512)
    with sim.temporarily(delay=1000):
        fill(cu, address, stream)
        cu.ok("cuCtxRecordEvent", context, event)
        cu.ok("cuCtxDestroy", context)
    assert cu.cuCtxRecordEvent(context, event) == "CUDA_ERROR_INVALID_CONTEXT"
    expect("dead context")
