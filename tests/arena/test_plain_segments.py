"""Blocks on plain segments: without virtual memory, with ``vmm=False``, and with ``upstream=``."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

import arena
from arena import OutOfMemoryError, sim

from ..simulated.conftest import fresh
from ..simulated.cu import Cu
from ..threads import run_together
from .conftest import GIB, MIB, MakeArena, Work, check
from .upstream import Upstream


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


def test_without_virtual_memory_scattered_free_memory_is_useless_and_the_error_says_so(plain: MakeArena) -> None:
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


def test_unused_segments_go_back_for_larger_ones_and_on_trim(plain: MakeArena) -> None:
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


def test_the_cap_holds_for_plain_segments_when_threads_race(plain: MakeArena) -> None:
    pool = plain(cap="32MiB", growth="2MiB")

    def race(seed: int) -> None:
        choose, mine = random.Random(seed), []
        for _ in range(150):
            if mine and choose.random() < 0.5:
                mine.pop().free()
            else:
                try:
                    mine.append(pool.allocate(choose.choice([MIB, 3 * MIB, 7 * MIB])))
                except OutOfMemoryError:
                    mine.clear()
            assert sim.used() <= 32 * MIB

    run_together(*[partial(race, seed) for seed in range(4)])
    check(pool)


def test_on_a_full_device_segments_get_smaller_and_the_error_names_it(plain: MakeArena, cu: Cu) -> None:
    taken = cu.alloc(8 * GIB - 40 * MIB)
    pool = plain()
    buffer = pool.allocate(30 * MIB)
    with pytest.raises(OutOfMemoryError, match="device full"):
        pool.allocate(30 * MIB)
    assert pool.stats().largest == 10 * MIB
    cu.ok("cuMemFree", taken)
    assert pool.allocate(30 * MIB).nbytes == buffer.nbytes


def test_a_request_that_cannot_pass_leaves_free_memory_where_it_is(make: MakeArena) -> None:
    pool = make(cap="64MiB", growth="2MiB", vmm=False)
    kept, free = pool.allocate(40 * MIB), pool.allocate(20 * MIB)
    free.free()
    with pytest.raises(OutOfMemoryError):
        pool.allocate(30 * MIB)
    assert (kept.nbytes, check(pool).reserved) == (40 * MIB, 60 * MIB)


def test_a_segment_that_the_driver_does_not_take_back_is_kept_until_the_next_trim(make: MakeArena) -> None:
    pool = make(cap="64MiB", vmm=False)
    pool.allocate(MIB).free()
    before = check(pool).reserved
    sim.fail("cuMemFree", "CUDA_ERROR_UNKNOWN")
    with pytest.raises(arena.DriverError, match="cuMemFree"):
        pool.trim()
    assert check(pool).spare == before
    pool.trim()
    assert check(pool).reserved == 0


def test_a_closed_arena_returns_plain_segments_as_they_become_free(plain: MakeArena) -> None:
    pool = plain(cap="64MiB", growth="2MiB")
    first, second = pool.allocate(2 * MIB), pool.allocate(2 * MIB)
    pool.close()
    assert sim.used() == 4 * MIB
    first.free()
    assert sim.used() == 2 * MIB
    second.free()
    assert sim.used() == 0
