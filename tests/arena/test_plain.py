"""The same blocks on plain segments: where there is no virtual memory, or none is wanted, or others give it."""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import arena
from arena import OutOfMemoryError, UsageError, sim

from ..simulated.conftest import fresh
from ..simulated.cu import Cu, RefusedError
from .conftest import GIB, MIB, MakeArena, Work, check


class Upstream:
    """An allocator of somebody else's, which counts what it gave and got back."""

    def __init__(self, cu: Cu) -> None:
        self.cu = cu
        self.context = cu.out("cuCtxGetCurrent")
        self.sizes: list[int] = []
        self.live = 0
        self.on_request: Callable[[], object] | None = None
        self.on_return: Callable[[], object] | None = None

    def __call__(self, size: int) -> Any:
        self.sizes.append(size)
        if self.on_request:
            self.on_request()
        return Given(self, size)


class Given:
    def __init__(self, upstream: Upstream, size: int) -> None:
        self.upstream, self.size = upstream, size
        self.ptr = 0
        upstream.cu.ok("cuCtxSetCurrent", upstream.context)  # any thread may come here
        try:
            self.ptr = upstream.cu.alloc(size)
        except RefusedError as error:
            raise MemoryError(str(error)) from None
        upstream.live += size

    def __del__(self) -> None:
        if self.ptr:
            self.upstream.cu.ok("cuCtxSetCurrent", self.upstream.context)
            self.upstream.cu.ok("cuMemFree", self.ptr)
            self.upstream.live -= self.size
            if self.upstream.on_return:
                self.upstream.on_return()


@pytest.fixture(params=["vmm=False", "no virtual memory", "upstream"])
def plain(request: pytest.FixtureRequest, make: MakeArena, cu: Cu) -> MakeArena:
    if request.param == "no virtual memory":
        fresh(vmm=False)
        cu.start()

    def make_one(**settings: Any) -> arena.Arena:
        if request.param == "upstream":
            return make(**settings, upstream=Upstream(cu))
        return make(**settings, vmm=request.param != "vmm=False")

    return make_one


def test_blocks_live_on_plain_segments_under_the_cap(plain: MakeArena, work: Work) -> None:
    pool = plain(cap="64MiB")
    assert not pool.vmm
    choose, live, verdicts = random.Random(5), [], set()
    for step in range(400):
        if live and choose.random() < 0.5:
            buffer, value = live.pop(choose.randrange(len(live)))
            assert work.holds(buffer, value)
            buffer.free()
        else:
            try:
                buffer = pool.allocate(choose.choice([100, 5000, 300_000, 3 * MIB]))
            except OutOfMemoryError as error:
                verdicts.add(error.verdict)
                continue
            work.fill(buffer, step % 250)
            live.append((buffer, step % 250))
        check(pool)
    assert all(work.holds(buffer, value) for buffer, value in live)
    assert sim.census().handles == 0
    assert verdicts <= {"fragmented", "cap reached"}
    while live:
        live.pop()[0].free()
    pool.allocate(64 * MIB).free()


def test_no_block_lies_across_two_segments(make: MakeArena) -> None:
    pool = make(cap="64MiB", growth="2MiB", vmm=False)
    blocks = [pool.allocate(2 * MIB) for _ in range(6)]
    assert len(pool.snapshot().segments) == 6
    while blocks:
        blocks.pop().free()
    big = pool.allocate(8 * MIB)
    inside = [s for s in pool.snapshot().segments if s.address <= big.ptr and big.ptr + big.size <= s.address + s.size]
    assert len(inside) == 1
    check(pool)


def test_free_memory_in_pieces_is_useless_without_virtual_memory_and_the_error_says_so(plain: MakeArena) -> None:
    pool = plain(cap="16MiB", reserve="16MiB")
    blocks = [pool.allocate(2 * MIB) for _ in range(8)]
    kept = blocks[::2]
    while blocks:
        del blocks[-1]
    with pytest.raises(OutOfMemoryError, match="use virtual memory") as caught:
        pool.allocate(4 * MIB)
    assert (caught.value.verdict, caught.value.largest) == ("fragmented", 2 * MIB)
    assert check(pool).stranded == 8 * MIB
    assert pool.allocate(caught.value.largest).nbytes == 2 * MIB
    kept.clear()
    assert pool.allocate(16 * MIB).nbytes == 16 * MIB


def test_segments_that_nobody_uses_go_back_for_larger_ones_and_by_trim(plain: MakeArena) -> None:
    pool = plain(cap="64MiB", growth="8MiB")
    for _ in range(3):
        blocks = [pool.allocate(5 * MIB) for _ in range(9)]
        while blocks:
            blocks.pop().free()
        pool.allocate(60 * MIB).free()
    assert check(pool).live == 0
    assert pool.stats().reserved > 0
    pool.trim()
    assert check(pool).reserved == 0


def test_a_reserve_is_one_segment_that_trim_keeps(plain: MakeArena) -> None:
    pool = plain(cap="64MiB", reserve="32MiB")
    assert (check(pool).reserved, len(pool.snapshot().segments)) == (32 * MIB, 1)
    pool.allocate(30 * MIB).free()
    pool.trim()
    assert check(pool).reserved == 32 * MIB
    pool.set_cap("16MiB")
    assert check(pool, highest_cap=64 * MIB).reserved == 0


def test_a_segment_goes_back_only_when_its_streams_are_done(plain: MakeArena, cu: Cu, work: Work) -> None:
    pool = plain(cap="16MiB", growth="2MiB")
    stream = cu.stream()
    with sim.temporarily(delay=3000):
        with pool.allocate(10 * MIB, stream) as buffer:
            work.fill(buffer, 1, stream)
        assert check(pool).pending == 10 * MIB
        other = pool.allocate(16 * MIB)
    work.fill(other, 2)
    assert work.holds(other, 2)


def test_an_upstream_gets_nothing_back_that_a_stream_still_uses(make: MakeArena, cu: Cu, work: Work) -> None:
    """The driver's own function waits for the device, and so hides what comes too early. Others need not."""
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


def test_the_cap_holds_for_plain_segments_when_threads_race(plain: MakeArena) -> None:
    pool = plain(cap="32MiB", growth="2MiB")
    failures: list[BaseException] = []

    def race(seed: int) -> None:
        choose, mine = random.Random(seed), []
        try:
            for _ in range(150):
                if mine and choose.random() < 0.5:
                    mine.pop().free()
                else:
                    try:
                        mine.append(pool.allocate(choose.choice([MIB, 3 * MIB, 7 * MIB])))
                    except OutOfMemoryError:
                        mine.clear()
                assert sim.used() <= 32 * MIB
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=race, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    check(pool)


def test_a_full_device_makes_segments_smaller_and_is_named_when_there_is_no_room(plain: MakeArena, cu: Cu) -> None:
    taken = cu.alloc(8 * GIB - 40 * MIB)
    pool = plain()
    buffer = pool.allocate(30 * MIB)
    with pytest.raises(OutOfMemoryError, match="device full"):
        pool.allocate(30 * MIB)
    assert pool.stats().largest == 10 * MIB
    cu.ok("cuMemFree", taken)
    assert pool.allocate(30 * MIB).nbytes == buffer.nbytes


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
def test_an_upstream_that_fails_is_shown_as_it_is_and_changes_nothing(
    make: MakeArena, function: Any, kind: type[Exception], text: str
) -> None:
    pool = make(cap="64MiB", upstream=function)
    with pytest.raises(kind, match=text):
        pool.allocate(1000)
    assert pool.stats().reserved == 0
    pool.validate()


def test_an_upstream_that_is_out_of_memory_is_a_full_device(make: MakeArena) -> None:
    def nothing(size: int) -> object:
        raise MemoryError(size)

    pool = make(cap="64MiB", upstream=nothing)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(1000)
    assert (caught.value.verdict, caught.value.largest) == ("device full", 0)
    assert pool.stats().peak_reserved == 0


def test_an_upstream_that_asks_the_arena_itself_for_memory_is_an_error(make: MakeArena) -> None:
    pools: list[arena.Arena] = []
    pools.append(make(cap="256MiB", upstream=lambda size: pools[0].allocate(size)))
    with pytest.raises(UsageError, match="upstream= asked this arena itself"):
        pools[0].allocate(1000)
    assert pools[0].stats().reserved == 0


def test_an_upstream_that_gives_the_same_memory_twice_is_an_error(make: MakeArena, cu: Cu) -> None:
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


def test_an_upstream_may_use_the_arena_itself(make: MakeArena, cu: Cu) -> None:
    """It runs without the lock, so what it drops on its way may be freed."""
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


def test_an_upstream_that_asks_for_more_than_there_is_does_not_wait_for_itself(make: MakeArena, cu: Cu) -> None:
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
    assert took[0] < 2  # memory that is on its way to others is waited for, for 3 seconds
    check(pool)


def test_a_segment_that_is_being_given_back_is_nobody_elses(make: MakeArena, cu: Cu) -> None:
    """While the first of three goes, somebody trims again, and allocates: that must not be given back instead."""
    upstream = Upstream(cu)
    pool = make(cap="64MiB", growth="2MiB", upstream=upstream)
    buffers = [pool.allocate(2 * MIB) for _ in range(3)]
    buffers.clear()
    pool.snapshot()  # so that they are known to be done

    def meanwhile() -> None:
        upstream.on_return = None
        pool.trim()
        buffers.extend(pool.allocate(2 * MIB) for _ in range(2))

    upstream.on_return = meanwhile
    pool.trim()
    pool.validate()
    assert (pool.stats().live, pool.stats().reserved, sim.used()) == (4 * MIB, 4 * MIB, 4 * MIB)
    for buffer in buffers:
        cu.ok("cuMemsetD8Async", buffer.ptr, 1, buffer.nbytes, 0)


def test_a_cap_that_is_lowered_while_memory_is_on_its_way_holds(make: MakeArena, cu: Cu) -> None:
    upstream = Upstream(cu)
    pool = make(cap="64MiB", growth="2MiB", upstream=upstream)
    pool.allocate(60 * MIB).free()
    pool.snapshot()

    def meanwhile() -> None:
        upstream.on_return = None
        pool.set_cap("16MiB")

    upstream.on_return = meanwhile
    with pytest.raises(OutOfMemoryError, match="cap reached"):
        pool.allocate(62 * MIB)
    check(pool, highest_cap=64 * MIB)


@pytest.mark.parametrize("taken", ["by a request", "in advance"])
def test_a_cap_that_is_lowered_while_memory_is_asked_for_holds(make: MakeArena, cu: Cu, taken: str) -> None:
    upstream = Upstream(cu)
    pool = make(cap="64MiB", growth="2MiB", upstream=upstream)

    def meanwhile() -> None:
        upstream.on_request = None
        pool.set_cap("16MiB")

    upstream.on_request = meanwhile
    with pytest.raises(OutOfMemoryError, match="cap reached"):
        pool.allocate(32 * MIB) if taken == "by a request" else pool.reserve("32MiB")
    assert check(pool, highest_cap=64 * MIB).reserved <= 16 * MIB


def test_a_cap_that_is_lowered_while_a_segment_is_refused_holds_for_a_smaller_one(make: MakeArena, cu: Cu) -> None:
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


def test_a_request_waits_for_memory_that_another_thread_is_giving_back(make: MakeArena, cu: Cu) -> None:
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
    assert time.monotonic() - begun < 2  # it is told when the memory is there: it waits for 3 seconds at most
    upstream.on_return = None
    thread.join()
    check(pool)


def test_an_arena_that_is_closed_while_memory_is_on_its_way_keeps_none(make: MakeArena, cu: Cu) -> None:
    upstream = Upstream(cu)
    pool = make(cap="64MiB", growth="2MiB", upstream=upstream)
    upstream.on_request = pool.close
    with pytest.raises(UsageError, match="the arena is closed"):
        pool.allocate(2 * MIB)
    assert (upstream.live, sim.used()) == (0, 0)


def test_an_arena_that_is_closed_while_it_is_compacted_keeps_none(make: MakeArena, cu: Cu) -> None:
    upstream = Upstream(cu)
    pool = make(cap="64MiB", growth="4MiB", reserve="16MiB", upstream=upstream, compact=True)
    held = [pool.allocate(8 * MIB) for _ in range(4)]
    held.clear()

    def meanwhile() -> None:
        upstream.on_return = None
        pool.close()

    upstream.on_return = meanwhile
    with pytest.raises(UsageError, match="the arena is closed"):
        pool.trim(compact=True)
    assert (upstream.live, sim.used()) == (0, 0)


def test_memory_of_an_upstream_that_orders_by_streams_is_waited_for_by_others(make: MakeArena, cu: Cu) -> None:
    own, other = cu.stream(), cu.stream()

    class Ordered:
        def __init__(self, size: int) -> None:
            self.ptr = cu.out("cuMemAllocAsync", size, own)

        def __del__(self) -> None:
            cu.ok("cuMemFreeAsync", self.ptr, own)

    pool = make(cap="2MiB", upstream=Ordered)  # no room for another segment, which would be taken rather than wait
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


def test_a_request_that_cannot_be_met_leaves_what_is_free_where_it_is(make: MakeArena) -> None:
    pool = make(cap="64MiB", growth="2MiB", vmm=False)
    kept, free = pool.allocate(40 * MIB), pool.allocate(20 * MIB)
    free.free()
    with pytest.raises(OutOfMemoryError):
        pool.allocate(30 * MIB)
    assert (kept.nbytes, check(pool).reserved) == (40 * MIB, 60 * MIB)


def test_an_upstream_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(UsageError, match="upstream=5 cannot be called"):
        arena.Arena(device="sim:1GiB", upstream=5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="vmm='no' is not accepted; write True or False"):
        arena.Arena(device="sim:1GiB", vmm="no")  # type: ignore[arg-type]


def test_a_driver_that_does_not_take_a_segment_back_keeps_it_until_the_next_trim(make: MakeArena) -> None:
    pool = make(cap="64MiB", vmm=False)
    pool.allocate(MIB).free()
    before = check(pool).reserved
    sim.fail("cuMemFree", "CUDA_ERROR_UNKNOWN")
    with pytest.raises(arena.DriverError, match="cuMemFree"):
        pool.trim()
    assert check(pool).spare == before
    pool.trim()
    assert check(pool).reserved == 0


def test_a_closed_arena_gives_plain_segments_back_as_they_come_free(plain: MakeArena) -> None:
    pool = plain(cap="64MiB", growth="2MiB")
    first, second = pool.allocate(2 * MIB), pool.allocate(2 * MIB)
    pool.close()
    assert sim.used() == 4 * MIB
    first.free()
    assert sim.used() == 2 * MIB
    second.free()
    assert sim.used() == 0
