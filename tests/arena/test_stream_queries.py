"""What a hit asks the driver about its stream: who it is, and whether it is being captured. In any thread."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import pytest

from arena import sim

from ..simulated.cu import Cu
from .conftest import MIB, MakeArena, check


def asked(function: Callable[[], Any]) -> dict[str, int]:
    """The driver calls that a function makes."""
    names = ("cuCtxGetCurrent", "cuCtxPushCurrent", "cuStreamGetId", "cuStreamGetCaptureInfo", "cuStreamIsCapturing")
    before = {name: sim.calls(name) for name in names}
    function()
    return {name: count for name in names if (count := sim.calls(name) - before[name])}


def in_a_thread(function: Callable[[], Any]) -> Any:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def test_a_hit_on_a_number_asks_who_the_stream_is_and_whether_it_is_captured(make: MakeArena, cu: Cu) -> None:
    pool, stream = make(cap="64MiB"), cu.stream()
    for _ in range(3):
        pool.allocate(MIB, stream).free()
    hits = pool.stats().hits
    assert asked(lambda: pool.allocate(MIB, stream).free()) == {"cuStreamGetId": 1, "cuStreamGetCaptureInfo": 1}
    assert pool.stats().hits == hits + 1
    check(pool)


def test_a_hit_on_a_kept_stream_asks_whether_it_is_captured(make: MakeArena, cu: Cu) -> None:
    pool, stream = make(cap="64MiB"), cu.owned_stream()
    for _ in range(3):
        pool.allocate(MIB, stream).free()
    assert asked(lambda: pool.allocate(MIB, stream).free()) == {"cuStreamGetCaptureInfo": 1}
    check(pool)


def test_a_hit_in_a_thread_without_a_context_is_served_like_any_other(make: MakeArena, cu: Cu) -> None:
    pool, stream = make(cap="64MiB"), cu.stream()
    address = pool.allocate(MIB, stream)
    first = address.ptr
    address.free()
    pool.allocate(MIB, stream).free()

    def allocate() -> int:
        assert cu.out("cuCtxGetCurrent") == 0
        buffer = pool.allocate(MIB, stream)
        buffer.free()
        return buffer.ptr

    assert in_a_thread(allocate) == first
    check(pool)


@pytest.mark.parametrize("end", ["alive", "destroyed"])
def test_another_context_that_is_current_does_not_matter(make: MakeArena, cu: Cu, end: str) -> None:
    """The stream and the arena belong to the primary context."""
    pool, stream = make(cap="64MiB"), cu.stream()
    for _ in range(2):
        pool.allocate(MIB, stream).free()
    other = cu.out("cuCtxCreate", 0, 0)
    try:
        if end == "destroyed":
            in_a_thread(lambda: cu.ok("cuCtxDestroy", other))
        hits = pool.stats().hits
        pool.allocate(MIB, stream).free()
        assert pool.stats().hits == hits + 1
    finally:
        if end == "alive":
            cu.ok("cuCtxDestroy", other)
        cu.start()
    check(pool)


def test_a_capture_is_noticed_whichever_context_is_current(make: MakeArena, cu: Cu) -> None:
    pool, stream = make(cap="64MiB"), cu.stream()
    for _ in range(3):
        pool.allocate(MIB, stream).free()
    cu.ok("cuStreamBeginCapture", stream, 2)
    try:
        captured = in_a_thread(lambda: pool.allocate(MIB, stream))
        captured.free()
        assert pool.stats().captured == MIB
    finally:
        assert cu.cuStreamEndCapture(stream, ctypes.byref(ctypes.c_uint64())) == "CUDA_SUCCESS"
    pool.release_graphs()
    check(pool)


def test_an_error_of_the_driver_is_passed_on(make: MakeArena, cu: Cu) -> None:
    pool, stream = make(cap="64MiB"), cu.stream()
    pool.allocate(MIB, stream).free()
    for name in ("cuStreamGetId", "cuStreamGetCaptureInfo"):
        sim.fail(name, "CUDA_ERROR_UNKNOWN", times=2)  # the quick path leaves the first to the slow one
        with pytest.raises(Exception, match=f"{name} failed: CUDA_ERROR_UNKNOWN"):
            pool.allocate(MIB, stream)
    pool.allocate(MIB, stream).free()
    check(pool)
