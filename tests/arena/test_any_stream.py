"""Memory for clients that do not say which streams use it: it is ready for all of them, and waits for all of them."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

import arena
from arena import sim

from ..simulated.cu import Cu
from .conftest import MIB, MakeArena, Work

DELAY = 20_000  # microseconds


def allocate(pool: arena.Arena, size: int) -> Any:
    return pool._allocate_for("Numba", size, None)


@pytest.fixture(autouse=True, params=[13000, 12040])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers before CUDA 12.5 have no cuCtxRecordEvent."""
    monkeypatch.setenv("CUDASIM_VERSION", str(request.param))  # before the driver starts


@pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
@pytest.mark.parametrize("size", [1000, 3 * MIB])
def test_it_is_reused_by_another_stream_only_after_the_first_has_passed(
    make: MakeArena, cu: Cu, work: Work, size: int, vmm: bool
) -> None:
    pool = make(cap="4MiB", vmm=vmm)
    streams = [cu.stream(), cu.stream(), 0]
    with sim.temporarily(delay=DELAY):
        for _ in range(3):
            for stream in streams:
                buffer = allocate(pool, size)
                work.fill(buffer, 1, stream)  # nobody tells the arena
                buffer.free()
    pool.validate()
    assert sim.races() == []


def test_memory_that_other_streams_freed_is_given_out_only_when_they_have_passed(
    make: MakeArena, cu: Cu, work: Work
) -> None:
    pool = make(cap="4MiB")
    first, second = cu.stream(), cu.stream()
    with sim.temporarily(delay=DELAY):
        for stream in (0, first):
            buffer = pool.allocate(4 * MIB, stream)
            work.fill(buffer, 1, stream)
            buffer.free()
            buffer = allocate(pool, 4 * MIB)
            work.fill(buffer, 2, second)
            buffer.free()
    assert sim.races() == []


def test_other_streams_wait_for_memory_that_any_stream_may_have_used(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="4MiB")
    first, second = cu.stream(), cu.stream()
    with sim.temporarily(delay=DELAY):
        buffer = allocate(pool, 4 * MIB)
        work.fill(buffer, 1, first)
        buffer.free()
        again = pool.allocate(4 * MIB, second)
        work.fill(again, 2, second)
    assert sim.races() == []
    again.free()


@pytest.mark.parametrize("size", [1000, MIB, 20 * MIB])
def test_it_is_reused_and_takes_no_new_memory(make: MakeArena, size: int) -> None:
    pool = make(cap="512MiB")
    kept = [allocate(pool, size) for _ in range(3)]
    reserved = pool.stats().reserved
    for _ in range(100):
        kept.pop(0).free()
        kept.append(allocate(pool, size))
        pool.validate()
    assert pool.stats().reserved <= reserved + 64 * MIB  # a handle more at most
    for buffer in kept:
        buffer.free()


def test_an_idle_device_gives_it_all_back(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    allocate(pool, 10 * MIB).free()
    pool.trim()
    assert pool.stats().reserved == 0


def test_it_outlives_a_closed_arena(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="8MiB")
    buffer = allocate(pool, MIB)
    pool.close()
    work.fill(buffer, 1, cu.stream())
    cu.cuCtxSynchronize_v2(0)
    buffer.free()
    assert sim.findings() == []
    assert sim.used() == 0


@pytest.mark.parametrize("given", [(), (0,), ("2MiB", None), (1000, 0)])
def test_the_stream_may_be_left_out_or_named(make: MakeArena, given: tuple[Any, ...]) -> None:
    pool = make(cap="8MiB")
    pool._allocate_for("Numba", *(given or (1000,))).free()
    assert pool.stats().live == 0


def test_a_free_during_the_capture_of_a_stream_that_the_arena_keeps_leaves_the_capture_alone(
    make: MakeArena, cu: Cu
) -> None:
    pool = make(cap="8MiB")
    stream = cu.owned_stream()  # non-blocking: the legacy stream does not show its capture
    pool.allocate(1000, stream).free()
    buffer = allocate(pool, 1000)
    graph = ctypes.c_void_p()
    cu.ok("cuStreamBeginCapture_v2", stream.ptr, 0)
    buffer.free()
    cu.ok("cuStreamEndCapture", stream.ptr, ctypes.byref(graph))
    cu.ok("cuGraphDestroy", graph)
    allocate(pool, 1000).free()
    assert pool.stats().live == 0
