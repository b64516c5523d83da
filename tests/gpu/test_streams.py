"""Short-lived streams, and what the driver promises about streams, their ids and events."""

from __future__ import annotations

import ctypes
import gc
import time
from typing import Any

import pytest

import arena

from ..arena.streams import both_kinds, new_stream, number_of
from ..simulated.cu import NOT_READY, SUCCESS
from .conftest import MIB, Gpu, check

CHURN = 3000
HOLD = 0.2  # seconds that a stream is kept busy


@both_kinds
def test_thousands_of_streams_come_and_go(gpu: Gpu, kind: str) -> None:
    """As in CuPy: each stream is used briefly and dropped with its work queued, and its memory is reused."""
    pool = gpu.arena(cap="32MiB")
    live: list[tuple[arena.Buffer, int]] = []
    numbers = set()
    for turn in range(CHURN):
        stream: Any = new_stream(gpu.cu, kind)
        numbers.add(number_of(stream))
        buffer, value = pool.allocate((1 + turn % 3) * MIB // 2, stream), turn % 251
        gpu.fill(buffer.ptr, 255, buffer.nbytes, number_of(stream))
        gpu.fill(buffer.ptr, value, buffer.nbytes, number_of(stream))
        live.append((buffer, value))
        if turn % 4:
            live.pop(turn % len(live))[0].free()
        if kind == "number":
            gpu.cu.ok("cuStreamDestroy", stream)
        del stream, buffer
        if len(live) == 20 or turn == CHURN - 1:
            gpu.synchronize()
            assert all(gpu.holds(buffer.ptr, value, buffer.nbytes) for buffer, value in live)
            live.clear()
    s = check(pool)
    gpu.note("different handles", f"{len(numbers)} of {CHURN}")
    gpu.note("waits on the device", s.waits)
    assert (s.live, s.allocations) == (0, CHURN)
    pool.trim()
    assert check(pool).reserved == 0
    gc.collect()


def test_stream_ids_are_never_given_twice(gpu: Gpu) -> None:
    gpu.needs("cuStreamGetId")
    ids, handles, id_ = set(), set(), ctypes.c_ulonglong()
    for _ in range(CHURN):
        stream = gpu.cu.stream()
        handles.add(stream)
        gpu.cu.ok("cuStreamGetId", stream, ctypes.byref(id_))
        ids.add(id_.value)
        gpu.cu.ok("cuStreamDestroy", stream)
    gpu.note("different handles", f"{len(handles)} of {CHURN}")
    assert len(ids) == CHURN


def test_an_event_covers_what_was_queued_before_it_and_nothing_later(gpu: Gpu) -> None:
    one, two, event, address = gpu.stream(), gpu.stream(), gpu.cu.event(), gpu.cu.alloc(MIB)
    for hold in (HOLD, 10 * HOLD):  # a busy machine may be too slow for the first
        gpu.hold(one, HOLD / 4)
        gpu.fill(address, 1, MIB, one)
        gpu.cu.ok("cuEventRecord", event, one)
        was_pending = gpu.cu.cuEventQuery(event) == NOT_READY
        gpu.hold(one, hold)
        gpu.cu.ok("cuStreamWaitEvent", two, event, 0)
        gpu.fill(address, 2, MIB, two)
        gpu.cu.ok("cuStreamSynchronize", two)
        if was_pending and gpu.cu.cuStreamQuery(one) == NOT_READY:
            break
        gpu.cu.ok("cuStreamSynchronize", one)
    else:
        pytest.fail("the event was reached too early, or a wait for it waits for later work, too")
    assert gpu.cu.cuEventQuery(event) == SUCCESS
    assert gpu.holds(address, 2, MIB, one)
    gpu.cu.ok("cuEventDestroy", event)
    gpu.cu.ok("cuMemFree", address)


def test_an_event_of_the_whole_context_covers_streams_that_were_destroyed(gpu: Gpu) -> None:
    gpu.needs("cuCtxRecordEvent")
    event, address, took = gpu.cu.event(), gpu.cu.alloc(4 * MIB), []
    for turn in range(1, 5):
        stream = gpu.cu.stream(non_blocking=turn % 2 == 0)
        gpu.hold(stream, HOLD / 2)
        for value in range(100 + turn, turn - 1, -10):
            gpu.fill(address, value, 4 * MIB, stream)
        gpu.fill(address, turn, 4 * MIB, stream)
        start = time.perf_counter()
        gpu.cu.ok("cuStreamDestroy", stream)
        took.append(time.perf_counter() - start)
        gpu.cu.ok("cuCtxRecordEvent", gpu.context, event)
        gpu.cu.ok("cuEventSynchronize", event)
        assert gpu.cu.read(address, 4 * MIB) == bytes([turn]) * 4 * MIB
    gpu.note("destroying a busy stream, ms", round(max(took) * 1e3, 3))
    gpu.cu.ok("cuEventDestroy", event)
    gpu.cu.ok("cuMemFree", address)


def test_whether_an_event_of_the_whole_context_makes_streams_wait(gpu: Gpu) -> None:
    """Not documented. The arena expects that it does not; if it does, streams wait for each other near the cap."""
    gpu.needs("cuCtxRecordEvent")
    busy, other, event, address = gpu.stream(), gpu.stream(), gpu.cu.event(), gpu.cu.alloc(MIB)
    gpu.hold(busy, HOLD)
    gpu.cu.ok("cuCtxRecordEvent", gpu.context, event)
    assert gpu.cu.cuEventQuery(event) in (NOT_READY, SUCCESS)
    gpu.fill(address, 1, MIB, other)
    assert gpu.holds(address, 1, MIB, other)
    gpu.note("other streams wait for a context event", gpu.cu.cuStreamQuery(busy) == SUCCESS)
    gpu.cu.ok("cuEventSynchronize", event)
    assert gpu.cu.cuStreamQuery(busy) == SUCCESS
    gpu.cu.ok("cuEventDestroy", event)
    gpu.cu.ok("cuMemFree", address)


@both_kinds
def test_memory_of_a_stream_that_is_gone_is_reused_behind_its_work(gpu: Gpu, kind: str) -> None:
    pool = gpu.arena(cap="32MiB")
    other = gpu.stream()
    for turn in range(3):
        gone: Any = new_stream(gpu.cu, kind)
        first = pool.allocate(24 * MIB, gone)
        gpu.hold(number_of(gone), HOLD / 2)
        gpu.fill(first.ptr, 100, first.nbytes, number_of(gone))
        first.free()
        if kind == "number":
            gpu.cu.ok("cuStreamDestroy", gone)
        del gone
        second = pool.allocate(24 * MIB, other)
        gpu.fill(second.ptr, turn, second.nbytes, other)
        gpu.cu.ok("cuStreamSynchronize", other)
        gpu.synchronize()
        assert gpu.holds(second.ptr, turn, second.nbytes, other)
        second.free()
    check(pool)


def test_what_asking_about_a_stream_costs(gpu: Gpu) -> None:
    """Every request on an explicit stream queries both. Python's overhead is measured with an empty call and
    subtracted."""
    gpu.needs("cuStreamGetId")
    stream, status, id_, version = gpu.stream(), ctypes.c_int(), ctypes.c_ulonglong(), ctypes.c_int()
    calls: dict[str, tuple[Any, ...]] = {
        "cuDriverGetVersion": (ctypes.byref(version),),
        "cuStreamIsCapturing": (ctypes.c_uint64(stream), ctypes.byref(status)),
        "cuStreamGetId": (ctypes.c_uint64(stream), ctypes.byref(id_)),
    }
    costs = {}
    for name, arguments in calls.items():
        function, best = getattr(gpu.cu.lib, name), float("inf")
        for _ in range(5):
            start = time.perf_counter_ns()
            for _ in range(1000):
                function(*arguments)
            best = min(best, (time.perf_counter_ns() - start) / 1000)
        costs[name] = best
    assert status.value == 0
    for name in list(calls)[1:]:
        gpu.note(f"{name}, ns", round(max(0.0, costs[name] - costs["cuDriverGetVersion"])))
