"""Captured graphs: the memory they use at every launch stays theirs until it is released."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import arena
from arena import OutOfMemoryError, UsageError, sim

from ..simulated.cu import Cu
from .conftest import MIB, MakeArena, Work, check
from .streams import both_kinds, new_stream, number_of

virtual_and_plain = pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
named_and_not = pytest.mark.parametrize("named", [True, False], ids=["with graph()", "without graph()"])
modes = pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread local", "relaxed"])
SIZE = 3 * MIB


class Captured:
    """A graph captured from a stream in a ``with`` block."""

    def __init__(self, cu: Cu) -> None:
        self.cu, self.launchable = cu, 0

    @contextlib.contextmanager
    def of(self, stream: Any, mode: int = 0) -> Iterator[None]:
        number, graph = number_of(stream), ctypes.c_uint64()
        self.cu.ok("cuStreamBeginCapture", number, mode)
        try:
            yield
        finally:
            self.cu.ok("cuStreamEndCapture", number, ctypes.byref(graph))
        self.launchable = self.cu.out("cuGraphInstantiateWithFlags", graph.value, 0)
        self.cu.ok("cuGraphDestroy", graph.value)

    def launch(self, stream: Any) -> None:
        self.cu.ok("cuGraphLaunch", self.launchable, number_of(stream))


class Chain:
    """A graph like ``out = a * b + c``: it computes its output from its input, through temporaries."""

    def __init__(self, cu: Cu, pool: arena.Arena, stream: Any, size: int = SIZE) -> None:
        self.cu, self.stream, self.size = cu, stream, size
        self.into, self.out = (pool.allocate(size, stream) for _ in range(2))
        self.graph = Captured(cu)
        self.temporaries: list[int] = []

    def capture(self, pool: arena.Arena, mode: int = 0, steps: int = 3) -> None:
        number, before = number_of(self.stream), self.into
        with self.graph.of(self.stream, mode):
            for _ in range(steps):
                after = pool.allocate(self.size, self.stream)
                self.temporaries.append(after.ptr)
                self.cu.ok("cuMemcpyDtoDAsync", after.ptr, before.ptr, self.size, number)
                before = after  # the one before that is free
            self.cu.ok("cuMemcpyDtoDAsync", self.out.ptr, before.ptr, self.size, number)

    def gives(self, value: int) -> bool:
        """Whether a launch copies its input to its output."""
        number = number_of(self.stream)
        self.cu.ok("cuMemsetD8Async", self.into.ptr, value, self.size, number)
        self.graph.launch(self.stream)
        self.cu.ok("cuStreamSynchronize", number)
        return self.cu.read(self.out.ptr, self.size) == bytes([value]) * self.size


@contextlib.contextmanager
def kept(pool: arena.Arena, named: bool) -> Iterator[Callable[[], None]]:
    """Enter around a capture; yields a function that releases the graph's memory."""
    if named:
        with pool.graph() as memory:
            yield memory.release
    else:
        yield pool.release_graphs


@both_kinds
@virtual_and_plain
@named_and_not
@modes
def test_graphs_and_the_rest_of_the_program_keep_their_bytes(
    make: MakeArena, cu: Cu, work: Work, kind: str, vmm: bool, named: bool, mode: int
) -> None:
    pool = make(cap="64MiB", growth="4MiB", vmm=vmm, compact=True)
    stream, other = new_stream(cu, kind), new_stream(cu, kind)
    chain = Chain(cu, pool, stream)
    with kept(pool, named) as release:
        chain.capture(pool, mode)
    others: list[arena.Buffer] = []
    with contextlib.suppress(OutOfMemoryError):
        while True:
            others.append(pool.allocate(MIB, other if len(others) % 2 else stream))
            work.fill(others[-1], len(others), number_of(other if len(others) % 2 == 0 else stream))
    for buffer in others[::3]:
        buffer.free()
    cu.ok("cuCtxSynchronize_v2", 0)
    left = {i + 1: buffer for i, buffer in enumerate(others) if i % 3}
    others.clear()
    if vmm:
        pool.trim(compact=True)
    else:
        pool.trim()
    for value in range(10):
        assert chain.gives(value + 100)
    assert all(cu.read(buffer.ptr, MIB) == bytes([value]) * MIB for value, buffer in left.items())
    assert check(pool).captured > 0
    release()
    assert check(pool).captured == 0
    assert all(cu.read(buffer.ptr, MIB) == bytes([value]) * MIB for value, buffer in left.items())


@both_kinds
@virtual_and_plain
@named_and_not
def test_a_capture_reuses_its_own_memory(make: MakeArena, cu: Cu, kind: str, vmm: bool, named: bool) -> None:
    pool = make(cap="64MiB", growth="2MiB", vmm=vmm)
    chain = Chain(cu, pool, new_stream(cu, kind))
    with kept(pool, named) as release:
        chain.capture(pool, steps=8)
    assert len(set(chain.temporaries)) == 2  # one is read while the next is written
    assert chain.gives(7)
    release()


def test_another_stream_of_the_capture_does_not_get_what_the_first_one_freed(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="64MiB", growth="2MiB")
    one, two = cu.owned_stream(), cu.owned_stream()
    fork, join, graph = cu.event(), cu.event(), Captured(cu)
    where = []
    with pool.graph() as memory, graph.of(one):
        cu.ok("cuEventRecord", fork, one.ptr)
        cu.ok("cuStreamWaitEvent", two.ptr, fork, 0)
        for stream in (one, two):
            with pool.allocate(SIZE, stream) as buffer:
                cu.ok("cuMemsetD8Async", buffer.ptr, 1, SIZE, stream.ptr)
                where.append(buffer.ptr)
        cu.ok("cuEventRecord", join, two.ptr)
        cu.ok("cuStreamWaitEvent", one.ptr, join, 0)
    assert where[0] != where[1]
    graph.launch(one)
    cu.ok("cuStreamSynchronize", one.ptr)
    memory.release()
    for event in (fork, join):
        cu.ok("cuEventDestroy", event)


@virtual_and_plain
def test_the_account_includes_captured_memory_and_drops_after_the_release(make: MakeArena, cu: Cu, vmm: bool) -> None:
    pool = make(cap="64MiB", growth="2MiB", vmm=vmm)
    stream = cu.owned_stream()
    before = check(pool).reserved
    with pool.graph() as memory:
        chain = Chain(cu, pool, stream)
        chain.capture(pool)
    s = check(pool)
    assert (s.captured, s.live) == (2 * SIZE, 2 * SIZE)
    pieces = pool.snapshot().pieces
    assert sum(piece.size for piece in pieces if piece.state == "captured") == s.captured
    assert "captured" in str(pool.report())
    pool.trim()
    assert check(pool).captured == 2 * SIZE
    memory.release()
    assert check(pool).captured == 0
    cu.ok("cuCtxSynchronize_v2", 0)
    pool.trim()
    down = check(pool).reserved
    assert down < s.reserved
    chain.into.free()
    chain.out.free()
    pool.trim()
    assert check(pool).reserved == before


@both_kinds
@named_and_not
@pytest.mark.parametrize("then", ["allocate", "trim", "compact", "close"])
def test_the_memory_of_a_graph_is_not_reused_before_its_last_launch_is_done(
    make: MakeArena, cu: Cu, work: Work, kind: str, named: bool, then: str
) -> None:
    pool = make(cap="16MiB", growth="2MiB", compact=True)
    stream, other = new_stream(cu, kind), new_stream(cu, kind)
    chain = Chain(cu, pool, stream)
    with kept(pool, named) as release:
        chain.capture(pool)
    assert chain.gives(9)
    with sim.temporarily(delay=20_000):
        chain.graph.launch(other)  # a stream that had nothing to do with the capture
        release()
        if then == "trim":
            pool.trim()
        if then == "compact":
            pool.trim(compact=True)
        if then == "close":
            pool.close()
        else:
            new = pool.allocate(9 * MIB, stream)
            work.fill(new, 5, number_of(stream))
            assert work.holds(new, 5, number_of(stream))
    cu.ok("cuCtxSynchronize_v2", 0)
    assert cu.read(chain.out.ptr, SIZE) == bytes([9]) * SIZE


@named_and_not
def test_a_request_at_the_cap_fails_rather_than_take_a_graphs_memory(make: MakeArena, cu: Cu, named: bool) -> None:
    pool = make(cap="16MiB", growth="2MiB", compact=True)
    chain = Chain(cu, pool, cu.owned_stream())
    with kept(pool, named) as release:
        chain.capture(pool)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(12 * MIB)
    assert caught.value.largest <= 4 * MIB
    pool.allocate(caught.value.largest).free()
    assert chain.gives(1)
    release()
    chain.into.free()
    chain.out.free()
    pool.allocate(16 * MIB).free()
    check(pool)


def test_dropping_a_graphs_memory_object_releases_it(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="64MiB", growth="2MiB")
    chain = Chain(cu, pool, cu.owned_stream())
    with pool.graph() as memory:
        chain.capture(pool)
    assert check(pool).captured == 2 * SIZE
    del memory
    assert check(pool).captured == 0


def test_release_may_be_called_twice_and_a_block_is_entered_once(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="64MiB", growth="2MiB")
    chain = Chain(cu, pool, cu.owned_stream())
    with pool.graph() as memory:
        chain.capture(pool)
    memory.release()
    memory.release()
    pool.release_graphs()
    pool.release_graphs()
    with pytest.raises(UsageError, match=r"call pool.graph\(\) again"), memory:
        pass
    pool.graph().release()  # never entered
    assert check(pool).captured == 0


def test_memory_of_a_graph_outlives_the_arena_until_it_is_released(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="64MiB", growth="2MiB")
    chain = Chain(cu, pool, cu.owned_stream())
    with pool.graph() as memory:
        chain.capture(pool)
    pool.close()
    assert chain.gives(3)
    with pytest.raises(UsageError, match="closed"):
        pool.graph()
    with pytest.raises(UsageError, match="closed"):
        pool.release_graphs()
    memory.release()
    memory.release()
    cu.ok("cuCtxSynchronize_v2", 0)
    del chain
    gc.collect()
    assert sim.used() == 0


def test_closing_the_arena_inside_the_block_is_clean(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="64MiB", growth="2MiB")
    with pool.graph() as memory:
        buffer = pool.allocate(MIB)
        pool.close()
    buffer.free()
    memory.release()
    assert sim.used() == 0


def test_graphs_nest_and_each_has_its_own_memory(make: MakeArena, cu: Cu) -> None:
    pool, stream = make(cap="64MiB", growth="2MiB"), cu.owned_stream()
    outer_chain, inner_chain = Chain(cu, pool, stream), Chain(cu, pool, stream)
    with pool.graph() as outer:
        outer_chain.capture(pool)
        with pool.graph() as inner:
            inner_chain.capture(pool)
        pool.allocate(512, stream).free()
    assert set(outer_chain.temporaries).isdisjoint(inner_chain.temporaries)
    inner.release()
    assert check(pool).captured >= 2 * SIZE
    cu.ok("cuCtxSynchronize_v2", 0)
    pool.trim()
    assert outer_chain.gives(1)
    assert outer_chain.gives(2)
    outer.release()
    assert check(pool).captured == 0


def test_an_exception_ends_the_block(make: MakeArena, cu: Cu) -> None:
    pool, stream = make(cap="64MiB", growth="2MiB"), cu.owned_stream()
    memory = pool.graph()
    with contextlib.suppress(ZeroDivisionError), memory:
        pool.allocate(SIZE, stream).free()
        raise ZeroDivisionError
    assert check(pool).captured == SIZE
    with pool.allocate(SIZE, stream):  # does not belong to the graph
        assert check(pool).captured == SIZE
    memory.release()
    assert check(pool).captured == 0


def test_a_failing_request_does_not_end_the_block(make: MakeArena, cu: Cu) -> None:
    pool, stream = make(cap="16MiB", growth="2MiB"), cu.owned_stream()
    chain = Chain(cu, pool, stream)
    with pool.graph() as memory:
        with pytest.raises(OutOfMemoryError):
            pool.allocate(17 * MIB, stream)
        chain.capture(pool)
    assert chain.gives(8)
    memory.release()
    check(pool)


def test_blocks_that_outlive_the_release_belong_to_the_program(make: MakeArena, cu: Cu, work: Work) -> None:
    pool, stream = make(cap="16MiB", growth="2MiB", compact=True), cu.owned_stream()
    graph = Captured(cu)
    with pool.graph() as memory, graph.of(stream):
        buffer = pool.allocate(8 * MIB, stream)
        cu.ok("cuMemsetD8Async", buffer.ptr, 6, buffer.nbytes, stream.ptr)
    graph.launch(stream)
    memory.release()
    assert work.holds(buffer, 6, stream.ptr)
    with pytest.raises(OutOfMemoryError):
        pool.allocate(9 * MIB, stream)
    buffer.free()
    pool.allocate(16 * MIB, stream).free()
    check(pool)


@both_kinds
def test_two_threads_with_a_graph_each_do_not_share_memory(make: MakeArena, cu: Cu, kind: str) -> None:
    pool, context = make(cap="64MiB", growth="2MiB"), cu.out("cuCtxGetCurrent")
    chains = [Chain(cu, pool, new_stream(cu, kind), MIB) for _ in range(2)]
    memories: list[Any] = [None, None]
    barrier, problems = threading.Barrier(2), []

    def capture(i: int) -> None:
        try:
            cu.ok("cuCtxSetCurrent", context)
            for round_ in range(20):
                if i == 0:
                    pool.trim()  # nothing is being captured now
                barrier.wait(20)
                chains[i].temporaries.clear()
                with pool.graph() as memories[i]:
                    chains[i].capture(pool, mode=1)
                barrier.wait(20)
                if i == 0 and not set(chains[0].temporaries).isdisjoint(chains[1].temporaries):
                    problems.append("shared")
                problems.extend(value for value in range(3) if not chains[i].gives(10 * round_ + value))
                barrier.wait(20)
        except BaseException as error:
            problems.append(error)
            barrier.abort()

    threads = [threading.Thread(target=capture, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    memories.clear()
    assert check(pool).captured == 0


def test_many_graphs_come_and_go_and_leave_nothing_behind(make: MakeArena, cu: Cu) -> None:
    pool, stream = make(cap="64MiB", growth="2MiB"), cu.owned_stream()
    chain = Chain(cu, pool, stream, MIB)
    for value in range(100):
        with pool.graph() as memory:
            chain.capture(pool)
        assert chain.gives(value)
        memory.release()
        cu.ok("cuGraphExecDestroy", chain.graph.launchable)
    assert check(pool).peak_reserved <= 32 * MIB
    pool.trim()
    assert check(pool).captured == 0
