"""Memory resources of the real RMM as ``upstream=`` of an arena.

RMM's CUDA runtime does not start on the simulated driver, so the lowest resource is one whose Python functions call
that driver, in place of ``rmm.mr.CudaMemoryResource``. What is on top of it is RMM's own.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import arena
from arena import sim

from ..arena.conftest import Work
from ..simulated.cu import Cu, RefusedError
from .process import run_client

rmm = pytest.importorskip("rmm", reason="there is no RMM for this Python")

MIB = 1 << 20


@pytest.fixture
def cu() -> Cu:
    driver = Cu()
    driver.start()
    return driver


def handle(stream: Any) -> int:
    return int(stream.__cuda_stream__()[1])


class Calls:
    """What RMM asked for, and got back: sizes and streams."""

    def __init__(self, cu: Cu) -> None:
        self.cu = cu
        self.taken: list[tuple[int, int]] = []
        self.returned: list[tuple[int, int]] = []
        self.resource = rmm.mr.CallbackMemoryResource(self.allocate, self.deallocate)

    def allocate(self, size: int, stream: Any) -> int:
        self.taken.append((size, handle(stream)))
        try:
            return self.cu.alloc(size)
        except RefusedError as error:
            raise MemoryError(str(error)) from None

    def deallocate(self, address: int, size: int, stream: Any) -> None:
        self.returned.append((size, handle(stream)))
        self.cu.ok("cuMemFree", address)


class OrderedCalls(Calls):
    """As cudaMallocAsync does it: memory is ready when its stream gets there."""

    def allocate(self, size: int, stream: Any) -> int:
        self.taken.append((size, handle(stream)))
        address = self.cu.out("cuMemAllocAsync", size, handle(stream))
        return int(address)

    def deallocate(self, address: int, size: int, stream: Any) -> None:
        self.returned.append((size, handle(stream)))
        self.cu.ok("cuMemFreeAsync", address, handle(stream))


@pytest.fixture
def make() -> Iterator[Callable[..., arena.Arena]]:
    made: list[arena.Arena] = []

    def make_one(**settings: Any) -> arena.Arena:
        made.append(arena.Arena(**settings))
        return made[-1]

    yield make_one
    for pool in made:
        pool.close()


def test_segments_come_from_the_resource_and_go_back_to_it(make: Callable[..., arena.Arena], cu: Cu) -> None:
    calls = Calls(cu)
    counted = rmm.mr.StatisticsResourceAdaptor(calls.resource)
    pool = make(cap="1GiB", growth="64MiB", upstream=counted)
    buffers = [pool.allocate(1000) for _ in range(100)]
    assert calls.taken == [(64 * MIB, 0)]
    assert counted.allocation_counts.current_bytes == pool.stats().reserved == 64 * MIB
    pool.validate()
    buffers.clear()
    pool.trim()
    assert calls.returned == calls.taken
    assert counted.allocation_counts.current_bytes == sim.used() == 0


def test_a_resource_that_is_out_of_memory_counts_as_a_full_device(make: Callable[..., arena.Arena], cu: Cu) -> None:
    limited = rmm.mr.LimitingResourceAdaptor(Calls(cu).resource, 64 * MIB)
    pool = make(cap="256MiB", growth="32MiB", upstream=limited)
    held = pool.allocate(40 * MIB)
    with pytest.raises(arena.OutOfMemoryError) as caught:
        pool.allocate(40 * MIB)
    assert caught.value.verdict == "device full"
    pool.validate()
    held.free()
    pool.allocate(60 * MIB).free()  # which needs the first segment to go back


def test_an_error_of_the_resource_is_passed_on_and_changes_nothing(make: Callable[..., arena.Arena]) -> None:
    def fails(size: int, stream: Any) -> int:
        raise ValueError("no such device")

    pool = make(cap="64MiB", upstream=rmm.mr.CallbackMemoryResource(fails, lambda *_: None))
    with pytest.raises(RuntimeError, match="no such device"):
        pool.allocate(1000)
    assert pool.stats().reserved == 0
    pool.validate()


def test_other_streams_may_use_what_is_ready_on_the_default_stream(make: Callable[..., arena.Arena], cu: Cu) -> None:
    calls = OrderedCalls(cu)
    streams = [cu.out("cuStreamCreate", 1) for _ in range(2)]  # non-blocking: not ordered with the default stream
    for settings in ({}, {"reserve": "16MiB"}):
        pool = make(cap="64MiB", growth="2MiB", upstream=calls.resource, **settings)
        with sim.temporarily(delay=20_000):
            for _ in range(3):
                held = [pool.allocate(4 * MIB, stream) for stream in streams]
                for buffer, stream in zip(held, streams, strict=True):
                    Work(cu).fill(buffer, 1, stream)
                for buffer in held:
                    buffer.free()
                pool.trim()
        pool.close()
    assert len(calls.taken) == len(calls.returned)
    for stream in streams:
        cu.ok("cuStreamSynchronize", stream)
        cu.ok("cuStreamDestroy", stream)
    cu.ok("cuCtxSynchronize_v2", 0)
    cu.ok("cuMemPoolTrimTo", cu.out("cuDeviceGetDefaultMemPool", 0), 0)


def test_a_resource_is_used_with_the_arenas_device_current(make: Callable[..., arena.Arena]) -> None:
    sim.configure(devices=2)
    cu = Cu()
    cu.start()
    current: list[int] = []

    class Watched(Calls):
        def allocate(self, size: int, stream: Any) -> int:
            current.append(cu.out("cuCtxGetDevice", 0, kind=ctypes.c_int))
            return super().allocate(size, stream)

        def deallocate(self, address: int, size: int, stream: Any) -> None:
            current.append(cu.out("cuCtxGetDevice", 0, kind=ctypes.c_int))
            super().deallocate(address, size, stream)

    pool = make(device=1, cap="64MiB", upstream=Watched(cu).resource)
    pool.allocate(1000).free()
    assert (sim.used(0), sim.used(1)) == (0, pool.stats().reserved)
    pool.trim()
    assert current == [1, 1]
    assert cu.out("cuCtxGetDevice", 0, kind=ctypes.c_int) == 0


def test_a_capture_survives_a_segment_that_cannot_be_waited_for(make: Callable[..., arena.Arena], cu: Cu) -> None:
    pool = make(cap="64MiB", growth="2MiB", upstream=Calls(cu).resource)
    for non_blocking in (False, True):
        stream = cu.stream(non_blocking=non_blocking)
        cu.ok("cuStreamBeginCapture", stream, 0)
        if non_blocking:
            pool.allocate(4 * MIB, stream).free()
        else:
            with pytest.raises(arena.UsageError, match="while a stream is being captured"):
                pool.allocate(4 * MIB, stream)
        graph = ctypes.c_uint64()
        cu.ok("cuStreamEndCapture", stream, ctypes.byref(graph))
        cu.ok("cuGraphDestroy", graph.value)
        cu.ok("cuStreamDestroy", stream)
    pool.release_graphs()


def test_a_resource_lives_as_long_as_memory_of_it(cu: Cu) -> None:
    calls = Calls(cu)
    pool = arena.Arena(cap="64MiB", upstream=rmm.mr.TrackingResourceAdaptor(calls.resource))
    buffer = pool.allocate(1000)
    pool.close()
    del pool
    gc.collect()
    assert calls.returned == []
    buffer.free()
    assert calls.returned == calls.taken


def test_what_is_neither_a_function_nor_a_resource_is_refused() -> None:
    with pytest.raises(arena.UsageError, match=r"upstream=5 cannot be called; give a function .* RMM memory resource"):
        arena.Arena(upstream=5)


def test_a_resource_that_gives_no_address_is_refused(make: Callable[..., arena.Arena]) -> None:
    class NoAddress:
        def allocate(self, size: int) -> None:
            pass

        def deallocate(self, address: int, size: int) -> None:
            raise AssertionError("nothing was given")

    pool = make(cap="64MiB", upstream=NoAddress())
    with pytest.raises(arena.UsageError, match="gave None, which is not an address"):
        pool.allocate(1000)
    assert pool.stats().reserved == 0


NESTED = """
from arena import sim
sim.enable()
import arena, gc, os, rmm
outer = arena.Arena(cap="256MiB")
pool = arena.Arena(cap="64MiB", growth="2MiB", upstream=arena.rmm.resource(outer))
kept = [pool.allocate(1 << 20) for _ in range(10)]
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    pool.validate()
    outer.validate()
    outer.close()
    print(pool.stats().live >> 20)
"""


@pytest.mark.parametrize("end", ["", "pool.close()", "kept.clear()", "del pool, kept, outer; gc.collect()"])
def test_the_interpreter_exits_quietly_with_memory_of_a_resource_in_use(end: str) -> None:
    """In a forked child as well, where nothing may be given back."""
    assert run_client(NESTED + end, ARENA_DRIVER="sim", CUDASIM_RACES="print") == "10\n"
