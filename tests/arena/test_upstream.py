"""Memory from the program's own function (``upstream=``): what it may do, and what happens while it runs."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import arena
from arena import OutOfMemoryError, UsageError, sim

from ..simulated.cu import Cu
from .conftest import GIB, MIB, MakeArena, Work, check
from .upstream import Upstream


def test_an_upstream_gets_nothing_back_that_a_stream_still_uses(make: MakeArena, cu: Cu, work: Work) -> None:
    """The driver's own function waits for the device, which would hide a return that comes too early. Others need not
    wait."""
    stream, found = cu.stream(), []

    class Watched:
        def __init__(self, size: int) -> None:
            self.ptr = cu.alloc(size)

        def __del__(self) -> None:
            found.append(cu.cuStreamQuery(stream))
            cu.ok("cuMemFree", self.ptr)

    pool = make(cap="16MiB", growth="2MiB", upstream=Watched)
    with sim.temporarily(delay=50_000):
        with pool.allocate(10 * MIB, stream) as buffer:
            work.fill(buffer, 1, stream)
        pool.allocate(16 * MIB).free()
    assert found == ["CUDA_SUCCESS"]
    check(pool)


def test_upstream_is_asked_for_large_pieces_and_gets_them_back(make: MakeArena, cu: Cu) -> None:
    upstream = Upstream(cu)
    pool = make(cap="1GiB", growth="64MiB", upstream=upstream)
    buffers = [pool.allocate(1000) for _ in range(100)]
    assert upstream.sizes == [64 * MIB]
    buffers.clear()
    pool.trim()
    assert (upstream.live, sim.used()) == (0, 0)


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (lambda size: None, UsageError, r"upstream= gave None, which has no address in \.ptr"),
        (lambda size: SimpleNamespace(ptr="x"), UsageError, "upstream= gave memory at 'x', which is not an address"),
        (lambda size: SimpleNamespace(ptr=1 << 70), UsageError, "which is not an address"),
        (lambda size: SimpleNamespace(ptr=100), UsageError, "upstream= gave memory at 100, which is not an address"),
        (lambda size: SimpleNamespace(ptr=0), UsageError, "upstream= gave memory at 0"),
        (lambda size: SimpleNamespace(ptr=(1 << 64) - 256), UsageError, "after which there are no 8388608"),
        (lambda size: 1 // 0, ZeroDivisionError, "division"),
        (lambda: None, TypeError, "takes 0 positional arguments"),
    ],
)
def test_an_error_in_the_upstream_function_is_passed_on_and_changes_nothing(
    make: MakeArena, function: Any, kind: type[Exception], text: str
) -> None:
    pool = make(cap="64MiB", upstream=function)
    with pytest.raises(kind, match=text):
        pool.allocate(1000)
    assert pool.stats().reserved == 0
    pool.validate()


def test_an_upstream_that_is_out_of_memory_counts_as_a_full_device(make: MakeArena) -> None:
    def nothing(size: int) -> object:
        raise MemoryError(size)

    pool = make(cap="64MiB", upstream=nothing)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(1000)
    assert (caught.value.verdict, caught.value.largest) == ("device full", 0)
    assert pool.stats().peak_reserved == 0


def test_an_upstream_that_requests_memory_from_its_own_arena_is_an_error(make: MakeArena) -> None:
    pools: list[arena.Arena] = []
    pools.append(make(cap="256MiB", upstream=lambda size: pools[0].allocate(size)))
    with pytest.raises(UsageError, match="upstream= asked this arena itself"):
        pools[0].allocate(1000)
    assert pools[0].stats().reserved == 0


def test_an_upstream_that_returns_the_same_memory_twice_is_an_error(make: MakeArena, cu: Cu) -> None:
    taken = cu.alloc(64 * MIB)
    given: weakref.WeakSet[Any] = weakref.WeakSet()

    class Same:
        def __init__(self, size: int) -> None:
            self.ptr = taken
            given.add(self)

    pool = make(cap="256MiB", growth="2MiB", upstream=Same)
    first = pool.allocate(2 * MIB)
    with pytest.raises(UsageError, match="overlaps a segment it returned before"):
        pool.allocate(2 * MIB)
    assert len(given) == 1  # what was refused is dropped
    pool.validate()
    first.free()
    cu.ok("cuMemFree", taken)


def test_an_upstream_may_free_buffers_of_its_own_arena(make: MakeArena, cu: Cu) -> None:
    """It runs without the lock, so it can drop buffers."""
    dropped: list[object] = []
    upstream = Upstream(cu)

    def busy(size: int) -> object:
        dropped.clear()
        return upstream(size)

    pool = make(cap="64MiB", growth="2MiB", upstream=busy)
    dropped.append(pool.allocate(MIB))
    assert pool.allocate(8 * MIB).nbytes == 8 * MIB
    assert pool.stats().blocks == 0
    check(pool)


def test_an_upstream_that_requests_too_much_does_not_wait_for_itself(make: MakeArena, cu: Cu) -> None:
    upstream = Upstream(cu)
    pool = make(cap="64MiB", growth="2MiB", upstream=upstream)
    took: list[float] = []

    def ask() -> None:
        begun = time.monotonic()
        with pytest.raises(OutOfMemoryError, match="memory is on its way"):
            pool.allocate(64 * MIB)
        took.append(time.monotonic() - begun)

    upstream.on_request = ask
    pool.allocate(2 * MIB).free()
    assert len(took) == 1
    assert took[0] < 2  # a request waits up to 3 seconds for memory on its way to others
    check(pool)


def test_a_segment_on_its_way_back_is_not_returned_twice(make: MakeArena, cu: Cu) -> None:
    """While the first of three is returned, the program trims again and allocates. The new segment must not be
    returned."""
    upstream = Upstream(cu)
    pool = make(cap="64MiB", growth="2MiB", upstream=upstream)
    buffers = [pool.allocate(2 * MIB) for _ in range(3)]
    buffers.clear()
    pool.snapshot()  # so that they are known to be done

    def interfere() -> None:
        upstream.on_return = None
        pool.trim()
        buffers.extend(pool.allocate(2 * MIB) for _ in range(2))

    upstream.on_return = interfere
    pool.trim()
    pool.validate()
    assert (pool.stats().live, pool.stats().reserved, sim.used()) == (4 * MIB, 4 * MIB, 4 * MIB)
    for buffer in buffers:
        cu.ok("cuMemsetD8Async", buffer.ptr, 1, buffer.nbytes, 0)


def test_a_cap_lowered_while_a_segment_is_returned_holds(make: MakeArena, cu: Cu) -> None:
    upstream = Upstream(cu)
    pool = make(cap="64MiB", growth="2MiB", upstream=upstream)
    pool.allocate(60 * MIB).free()
    pool.snapshot()

    def interfere() -> None:
        upstream.on_return = None
        pool.set_cap("16MiB")

    upstream.on_return = interfere
    with pytest.raises(OutOfMemoryError, match="cap reached"):
        pool.allocate(62 * MIB)
    check(pool, highest_cap=64 * MIB)


@pytest.mark.parametrize("taken", ["by a request", "in advance"])
def test_a_cap_lowered_while_memory_is_requested_holds(make: MakeArena, cu: Cu, taken: str) -> None:
    upstream = Upstream(cu)
    pool = make(cap="64MiB", growth="2MiB", upstream=upstream)

    def interfere() -> None:
        upstream.on_request = None
        pool.set_cap("16MiB")

    upstream.on_request = interfere
    with pytest.raises(OutOfMemoryError, match="cap reached"):
        pool.allocate(32 * MIB) if taken == "by a request" else pool.reserve("32MiB")
    assert check(pool, highest_cap=64 * MIB).reserved <= 16 * MIB


def test_a_cap_lowered_while_a_segment_is_refused_holds_for_a_smaller_one(make: MakeArena, cu: Cu) -> None:
    upstream = Upstream(cu)
    pool = make(cap="64MiB", growth="8MiB", upstream=upstream)
    kept = pool.allocate(8 * MIB)

    def refuse() -> None:
        upstream.on_request = None
        pool.set_cap("8MiB")
        raise MemoryError

    upstream.on_request = refuse
    with pytest.raises(OutOfMemoryError):
        pool.allocate(MIB)
    assert (upstream.sizes, kept.nbytes) == ([8 * MIB, 6 * MIB], 8 * MIB)
    check(pool, highest_cap=64 * MIB)


def in_thread(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def test_headroom_is_kept_while_memory_is_on_its_way(make: MakeArena, cu: Cu) -> None:
    upstream = Upstream(cu)
    pool = make(headroom=8 * GIB - 100 * MIB, growth="2MiB", upstream=upstream)
    asked, go, kept = threading.Event(), threading.Event(), []
    upstream.on_request = lambda: (asked.set(), go.wait(20))
    thread = in_thread(lambda: kept.append(pool.allocate(60 * MIB)))
    asked.wait(20)
    upstream.on_request = None
    refused: list[str] = []

    def ask() -> None:
        try:
            pool.allocate(60 * MIB)
        except OutOfMemoryError as error:
            refused.append(error.verdict)

    second = in_thread(ask)
    time.sleep(0.1)
    go.set()
    thread.join()
    second.join()
    assert (len(kept), refused, sim.used()) == (1, ["headroom kept"], 60 * MIB)


def test_a_request_waits_for_memory_that_another_thread_is_returning(make: MakeArena, cu: Cu) -> None:
    upstream = Upstream(cu)
    pool = make(cap="64MiB", growth="64MiB", upstream=upstream)
    pool.allocate(60 * MIB).free()
    pool.snapshot()
    going = threading.Event()
    upstream.on_return = lambda: (going.set(), time.sleep(0.2))
    thread = in_thread(pool.trim)
    going.wait(20)
    begun = time.monotonic()
    assert pool.allocate(30 * MIB).nbytes == 30 * MIB
    assert time.monotonic() - begun < 2  # it is notified when the memory is there; without that it waits 3 seconds
    upstream.on_return = None
    thread.join()
    check(pool)


def test_an_arena_closed_while_memory_is_on_its_way_keeps_none(make: MakeArena, cu: Cu) -> None:
    upstream = Upstream(cu)
    pool = make(cap="64MiB", growth="2MiB", upstream=upstream)
    upstream.on_request = pool.close
    with pytest.raises(UsageError, match="the arena is closed"):
        pool.allocate(2 * MIB)
    assert (upstream.live, sim.used()) == (0, 0)


def test_an_arena_closed_while_it_is_compacted_keeps_none(make: MakeArena, cu: Cu) -> None:
    upstream = Upstream(cu)
    pool = make(cap="64MiB", growth="4MiB", reserve="16MiB", upstream=upstream, compact=True)
    held = [pool.allocate(8 * MIB) for _ in range(4)]
    held.clear()

    def interfere() -> None:
        upstream.on_return = None
        pool.close()

    upstream.on_return = interfere
    with pytest.raises(UsageError, match="the arena is closed"):
        pool.trim(compact=True)
    assert (upstream.live, sim.used()) == (0, 0)


def test_other_streams_wait_for_memory_of_a_stream_ordered_upstream(make: MakeArena, cu: Cu) -> None:
    own, other = cu.stream(), cu.stream()

    class Ordered:
        def __init__(self, size: int) -> None:
            self.ptr = cu.out("cuMemAllocAsync", size, own)

        def __del__(self) -> None:
            cu.ok("cuMemFreeAsync", self.ptr, own)

    pool = make(cap="2MiB", upstream=Ordered)  # no room for another segment, which would be taken instead of waiting
    with sim.temporarily(delay=5000):
        first, second = pool.allocate(MIB, own), pool.allocate(MIB, other)
        cu.ok("cuMemsetD8Async", second.ptr, 1, MIB, other)
    assert pool.stats().waits == 1
    first.free()
    second.free()
    cu.ok("cuCtxSynchronize_v2", 0)
    pool.trim()
    cu.ok("cuCtxSynchronize_v2", 0)
    cu.ok("cuMemPoolTrimTo", cu.out("cuDeviceGetDefaultMemPool", 0), 0)


def test_an_upstream_that_is_not_callable_is_refused() -> None:
    with pytest.raises(UsageError, match="upstream=5 cannot be called"):
        arena.Arena(device="sim:1GiB", upstream=5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="vmm='no' is not accepted; write True or False"):
        arena.Arena(device="sim:1GiB", vmm="no")  # type: ignore[arg-type]
