"""Snapshots list everything there is, and add up to the account."""

from __future__ import annotations

import pickle
import random
from itertools import pairwise

import pytest

import arena
from arena import sim

from ..simulated.cu import Cu
from .conftest import GIB, MIB, MakeArena, Work, check


@pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
def test_the_pieces_add_up_to_the_account(make: MakeArena, cu: Cu, vmm: bool) -> None:
    pool = make(cap="256MiB", reserve="64MiB", vmm=vmm)
    choose, live, stream = random.Random(3), [], cu.stream()
    for _ in range(300):
        if live and choose.random() < 0.5:
            live.pop(choose.randrange(len(live))).free()
        else:
            live.append(pool.allocate(choose.choice([10, 5000, 300_000, 3 * MIB]), choose.choice([0, stream])))
    snapshot = pool.snapshot()
    stats = check(pool)

    def total(state: str) -> int:
        return sum(piece.size for piece in snapshot.pieces if piece.state == state)

    assert (total("live"), total("pending"), total("captured"), total("releasable"), total("stranded")) == (
        (stats.live, stats.pending, stats.captured, stats.releasable, stats.stranded)
    )
    assert sum(piece.requested for piece in snapshot.live) == stats.requested
    assert sum(h.size for h in snapshot.handles) == stats.reserved == sim.used()
    assert sum(h.size for h in snapshot.handles if h.address is None) == stats.spare
    assert snapshot.stats == {name: getattr(stats, name) for name in snapshot.stats}
    assert all(one.address + one.size <= two.address for one, two in pairwise(snapshot.pieces))
    assert {piece.address for piece in snapshot.live} == {buffer.ptr for buffer in live}
    for piece in snapshot.pieces:
        assert any(s.address <= piece.address and piece.address + piece.size <= s.address + s.size
                   for s in snapshot.segments)  # fmt: skip


def test_a_block_describes_itself(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="64MiB")
    stream = cu.stream()
    pool.allocate(1).free()
    with pool.scope("outer"), pool.scope("inner"):
        buffer = pool.allocate(1000, stream)
    pool.pin(buffer)
    (piece,) = pool.snapshot().live
    assert piece == (buffer.ptr, 1024, "live", 1000, stream, 1, "outer/inner", True, (), None, "")


def test_a_snapshot_queries_what_the_streams_have_done(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="64MiB")
    stream = cu.owned_stream()  # for a plain number, only the whole context could answer
    with sim.temporarily(delay=50_000):
        with pool.allocate(8 * MIB, stream) as buffer:
            work.fill(buffer, 1, stream.ptr)
        assert {piece.state for piece in pool.snapshot().pieces} == {"pending"}
        cu.ok("cuStreamSynchronize", stream.ptr)
    assert pool.stats().pending > 0  # stats() makes no queries
    assert {piece.state for piece in pool.snapshot().pieces} == {"releasable"}
    assert pool.stats().pending > 0  # the next request meets the same arena, with or without the snapshot


def test_a_snapshot_is_plain_data(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    buffer = pool.allocate(1000)
    snapshot = pool.snapshot()
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot
    buffer.free()
    pool.close()
    assert len(snapshot.live) == 1


def test_an_empty_arena_has_an_empty_snapshot(make: MakeArena) -> None:
    snapshot = make(cap="64MiB").snapshot()
    assert (snapshot.segments, snapshot.handles, snapshot.pieces) == ([], [], [])
    assert isinstance(snapshot, arena.Snapshot)


def test_hits_and_splits_are_counted(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    first = pool.allocate(1000)
    assert (pool.stats().hits, pool.stats().splits) == (0, 1)
    fence = pool.allocate(1000)
    assert (pool.stats().hits, pool.stats().splits) == (1, 2)
    first.free()
    again = pool.allocate(1000)  # the whole gap
    assert (pool.stats().hits, pool.stats().splits, pool.stats().blocks) == (2, 2, 2)
    assert (again.nbytes, fence.nbytes) == (1000, 1000)


def test_free_memory_of_the_device_is_queried_whichever_process_took_it(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="4GiB")
    buffer = pool.allocate(MIB)
    taken = cu.alloc(6 * GIB)
    pool.snapshot()  # asks the driver, unlike stats()
    stats = pool.stats()
    assert stats.device_free == stats.device_total - sim.used() == 2 * GIB - stats.reserved
    assert stats.largest == stats.device_free + stats.reserved - buffer.size
    pool.allocate(stats.largest).free()
    cu.ok("cuMemFree", taken)
    pool.snapshot()
    assert pool.stats().largest == 4 * GIB - buffer.size
