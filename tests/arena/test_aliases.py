"""Aliases: where data is not moved, the free ends of handles in use are mapped side by side to serve a request."""

from __future__ import annotations

from pathlib import Path

import pytest

import arena
from arena import OutOfMemoryError, sim

from ..simulated.cu import Cu
from ..simulated.test_capture import GLOBAL_MODE, begin, end
from ..threads import thread_in_native_code
from .conftest import MIB, MakeArena, Work, check

GRANULE = 2 * MIB
LARGE = 6 * GRANULE  # as much as is free, in two separate halves
Blocks = dict[int, arena.Buffer]


def apart(
    make: MakeArena, work: Work, *, compact: bool | str = False, gone: tuple[int, ...] = ()
) -> tuple[arena.Arena, Blocks]:
    """An arena at its cap with four handles of four granules. Free: the end of the first, the start of the third."""
    pool = make(cap="32MiB", reserve="32MiB", growth="8MiB", compact=compact)
    blocks = [pool.allocate(GRANULE) for _ in range(16)]
    kept = {i: block for i, block in enumerate(blocks) if i not in (1, 2, 3, 8, 9, 10, *gone)}
    for number, block in kept.items():
        work.fill(block, number + 1)
    work.cu.ok("cuCtxSynchronize_v2", 0)
    for number, block in enumerate(blocks):
        if number not in kept:
            block.free()
    return pool, kept


def is_whole(work: Work, kept: Blocks) -> bool:
    return all(work.holds(block, number + 1) for number, block in kept.items())


def memory_calls() -> int:
    return sum(sim.calls(name) for name in ("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"))


def test_a_request_is_assembled_from_the_ends_of_two_handles(make: MakeArena, work: Work) -> None:
    pool, kept = apart(make, work)
    assert pool.stats().largest == LARGE
    large = pool.allocate(LARGE)
    work.fill(large, 99)
    assert work.holds(large, 99)
    assert is_whole(work, kept)
    assert len(pool.snapshot().aliases) == 2
    stats = check(pool)
    assert (stats.reserved, stats.rebacked, stats.largest) == (32 * MIB, 0, 0)
    large.free()


def test_idle_handles_are_mapped_between_borrowed_ones(make: MakeArena, work: Work) -> None:
    pool, kept = apart(make, work, gone=(4, 5, 6, 7))
    large = pool.allocate(10 * GRANULE)
    work.fill(large, 99)
    assert work.holds(large, 99)
    assert is_whole(work, kept)
    check(pool)


def test_repeating_the_request_makes_no_driver_calls(make: MakeArena, work: Work) -> None:
    pool, kept = apart(make, work)
    pool.allocate(LARGE).free()
    before = memory_calls()
    for value in range(10):
        with pool.allocate(LARGE) as large:
            work.fill(large, value)
    assert memory_calls() == before
    assert is_whole(work, kept)
    check(pool)


def test_borrowed_memory_goes_back_when_another_request_needs_it(make: MakeArena, work: Work) -> None:
    pool, kept = apart(make, work)
    pool.allocate(LARGE).free()
    assert len(pool.snapshot().aliases) == 2
    kept.clear()
    pool.allocate(32 * MIB).free()
    assert pool.snapshot().aliases == []
    check(pool)


def test_borrowed_memory_waits_for_its_last_user(make: MakeArena, work: Work, cu: Cu) -> None:
    pool, kept = apart(make, work)
    first, second = cu.stream(), cu.stream()
    kept.pop(0).free()
    with sim.temporarily(delay=20_000):
        ends = [pool.allocate(GRANULE, first) for _ in range(2)]
        for block in ends:
            work.fill(block, 1, first)
        for block in ends:
            block.free()
        large = pool.allocate(LARGE, second)
        work.fill(large, 99, second)
        assert work.holds(large, 99, second)
    assert sim.findings() == []
    check(pool)


def test_an_alias_is_not_unmapped_while_its_last_user_is_at_work(make: MakeArena, work: Work, cu: Cu) -> None:
    """Even if another alias has taken over its memory since. (Regression test.)"""
    pool, kept = apart(make, work)
    first, second = cu.stream(), cu.stream()
    with sim.temporarily(delay=50_000):
        large = pool.allocate(LARGE, first)
        work.fill(large, 98, first)
        large.free()
        for number in (4, 5, 6, 7):
            kept.pop(number).free()
        larger = pool.allocate(10 * GRANULE, second)
        with pytest.raises(OutOfMemoryError):
            pool.allocate(4 * GRANULE, second)
        work.fill(larger, 99, second)
        assert work.holds(larger, 99, second)
    assert is_whole(work, kept)
    assert sim.findings() == []
    check(pool)


def one_idle(make: MakeArena) -> tuple[arena.Arena, list[arena.Buffer]]:
    """An arena at its cap with four handles of four granules, the last of them idle."""
    pool = make(cap="32MiB", reserve="32MiB", growth="8MiB", compact=False)
    blocks = [pool.allocate(4 * GRANULE) for _ in range(4)]
    blocks.pop().free()
    return pool, blocks


def test_near_the_cap_a_request_takes_no_more_of_an_idle_handle_than_it_needs(make: MakeArena, work: Work) -> None:
    pool, blocks = one_idle(make)
    work.cu.ok("cuCtxSynchronize_v2", 0)
    blocks.append(pool.allocate(3 * GRANULE))  # then 15 of 16 granules are in use
    work.fill(blocks[-1], 99)
    stats = check(pool)
    assert stats.stranded == 0
    assert stats.cap - stats.reserved + stats.releasable + stats.spare == GRANULE
    assert work.holds(blocks[-1], 99)


def test_an_idle_handle_is_not_given_back_while_its_last_user_is_at_work(make: MakeArena, work: Work, cu: Cu) -> None:
    pool, blocks = one_idle(make)
    stream = cu.stream()
    with sim.temporarily(delay=50_000):
        busy = pool.allocate(4 * GRANULE, stream)
        work.fill(busy, 98, stream)
        busy.free()
        blocks.append(pool.allocate(3 * GRANULE, stream))
        work.fill(blocks[-1], 99, stream)
        assert work.holds(blocks[-1], 99, stream)
    assert sim.findings() == []
    check(pool)


def test_pinned_handles_are_not_borrowed_from(make: MakeArena, work: Work) -> None:
    pool, kept = apart(make, work)
    pool.pin(kept[0])
    assert pool.stats().largest == 3 * GRANULE
    with pytest.raises(OutOfMemoryError):
        pool.allocate(LARGE)
    pool.unpin(kept[0])
    pool.allocate(LARGE).free()
    check(pool)


def test_arenas_that_may_move_data_use_no_aliases(make: MakeArena, work: Work) -> None:
    pool, kept = apart(make, work, compact=True)
    large = pool.allocate(LARGE)
    assert pool.snapshot().aliases == []
    assert pool.stats().rebacked > 0
    assert is_whole(work, kept)
    large.free()
    check(pool)


@pytest.mark.parametrize("error", ["CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_INVALID_VALUE"])
def test_a_driver_that_cannot_map_a_handle_twice_is_not_asked_again(make: MakeArena, work: Work, error: str) -> None:
    pool, kept = apart(make, work)
    sim.fail("cuMemMap", error)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(LARGE)
    assert caught.value.largest == pool.stats().largest == 3 * GRANULE
    assert is_whole(work, kept)
    assert pool.snapshot().aliases == []
    check(pool)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("function", ["cuMemMap", "cuMemSetAccess"])
def test_a_partly_assembled_alias_is_undone(make: MakeArena, work: Work, function: str, nth: int) -> None:
    pool, kept = apart(make, work)
    sim.fail(function, nth=nth)
    try:
        pool.allocate(LARGE).free()
    except OutOfMemoryError:
        assert pool.snapshot().aliases == []
    sim.clear_planned()
    pool.allocate(LARGE).free()
    assert is_whole(work, kept)
    check(pool)


def test_no_alias_is_made_during_a_capture(make: MakeArena, work: Work, cu: Cu) -> None:
    pool, kept = apart(make, work)
    stream = cu.stream()
    assert pool._core is not None
    pool._core.keep_stream(stream, None)  # or the arena would not know about the capture
    pool.allocate(512, stream).free()
    begin(cu, stream, GLOBAL_MODE)
    with pytest.raises(OutOfMemoryError):
        pool.allocate(LARGE)
    end(cu, stream)
    pool.allocate(LARGE).free()
    assert is_whole(work, kept)
    check(pool)


def with_alias(make: MakeArena, work: Work) -> tuple[arena.Arena, Blocks, arena.Buffer]:
    pool, kept = apart(make, work, compact="auto")
    with thread_in_native_code():
        large = pool.allocate(5 * GRANULE)
    work.fill(large, 99)
    assert len(pool.snapshot().aliases) == 2
    return pool, kept, large


def test_live_data_on_aliases_is_moved_too(make: MakeArena, work: Work) -> None:
    pool, kept, large = with_alias(make, work)
    pool.trim(compact=True)
    stats = check(pool)
    assert (stats.compactable, stats.reserved) == (0, 32 * MIB)
    assert len(pool.snapshot().aliases) == 1  # of a handle whose every granule is in use
    assert is_whole(work, kept)
    assert work.holds(large, 99)


@pytest.mark.parametrize("nth", range(1, 7))
@pytest.mark.parametrize("function", ["cuMemUnmap", "cuMemRelease"])
def test_a_fault_while_data_on_aliases_is_moved_loses_nothing(
    make: MakeArena, work: Work, function: str, nth: int
) -> None:
    pool, kept, large = with_alias(make, work)
    sim.fail(function, "CUDA_ERROR_UNKNOWN", nth=nth)
    try:
        pool.trim(compact=True)
    except arena.ArenaError:
        check(pool)
    sim.clear_planned()
    assert is_whole(work, kept)
    assert work.holds(large, 99)
    pool.trim(compact=True)
    assert check(pool).compactable == 0
    assert work.holds(large, 99)


def test_snapshots_and_reports_include_aliases(make: MakeArena, work: Work, tmp_path: Path) -> None:
    pool, kept = apart(make, work)
    large = pool.allocate(LARGE)
    snapshot = pool.snapshot()
    handles = {handle.address: handle.size for handle in snapshot.handles}
    assert all(handles[alias.handle] == alias.size for alias in snapshot.aliases)
    assert sum(piece.size for piece in snapshot.pieces) == snapshot.stats["reserved"]
    assert arena.load(snapshot.save(tmp_path / "snapshot.json")) == snapshot
    large.free()
    for number in (4, 5, 6, 7, 11, 12, 13, 14, 15):
        kept.pop(number).free()
    pins = pool.report().pins
    assert [(pin.address, pin.holds_back) for pin in pins] == [(kept[0].ptr, 3 * GRANULE)]
    check(pool)


def test_beyond_a_lowered_cap_a_stitched_place_counts_whether_or_not_data_may_be_moved(make: MakeArena) -> None:
    """The free start and the free end of one handle give 20 MiB; the largest piece in one place is smaller."""
    pool = make(cap="1GiB", growth="26MiB", compact=True)
    first, second = pool.allocate(20_643_840), pool.allocate(4_358_144)
    assert [handle.size for handle in pool.snapshot().handles] == [26 * MIB]
    first.free()
    pool.set_cap(15_417_344)
    stats = pool.stats()
    assert (stats.largest_without_moving, stats.largest_with_moving) == (20 * MIB, 20 * MIB)
    stitched = pool.allocate(20 * MIB)
    stitched.free()
    second.free()
