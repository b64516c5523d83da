"""The arena: the cap holds, the account adds up and data stays intact, even when the driver fails."""

from __future__ import annotations

import random
from functools import partial

import pytest

import arena
from arena import OutOfMemoryError, UsageError, sim

from ..simulated.cu import Cu
from ..threads import run_together
from .conftest import GIB, MIB, MakeArena, Work, check

GRANULE = 2 * MIB


@pytest.mark.parametrize("seed", range(6))
def test_random_work_on_three_streams_keeps_data_cap_and_account(
    make: MakeArena, cu: Cu, work: Work, seed: int
) -> None:
    choose = random.Random(seed)
    pool = make(cap="48MiB", growth="8MiB", compact=True)
    streams = [cu.stream(), cu.stream(), 0]
    live: list[tuple[arena.Buffer, int, int]] = []
    refused: list[bool] = []
    for step in range(250):
        if live and choose.random() < 0.45:
            buffer, value, stream = live.pop(choose.randrange(len(live)))
            if step % 3 == 0:
                assert work.holds(buffer, value, stream)
            buffer.free()
        else:
            size = choose.choice([1, 700, 40_000, MIB, 3 * MIB, 7 * MIB])
            stream, value = choose.choice(streams), choose.randrange(1, 256)
            try:
                buffer = pool.allocate(size, stream)
            except OutOfMemoryError as error:
                refused.append(error.largest < size)
                continue
            work.fill(buffer, value, stream)
            live.append((buffer, value, stream))
        check(pool)
    assert all(work.holds(*entry) for entry in live)
    assert refused  # the cap was reached
    assert all(refused)  # and `largest` was below every size that failed
    while live:
        live.pop()[0].free()
    pool.allocate(48 * MIB).free()  # all of it, in one piece
    check(pool)


def test_a_request_passes_whenever_enough_granules_are_free(make: MakeArena) -> None:
    pool = make(cap="64MiB", compact=True)
    keep = [pool.allocate(GRANULE) for _ in range(32)]
    assert check(pool).reserved == 64 * MIB
    for buffer in keep[::2]:
        buffer.free()
    assert pool.allocate(32 * MIB).nbytes == 32 * MIB  # from sixteen separate pieces
    check(pool)


def test_the_largest_request_reported_passes_and_a_larger_one_does_not(make: MakeArena) -> None:
    choose = random.Random(5)
    pool = make(cap="32MiB", compact=True)
    live = [pool.allocate(choose.choice([5000, 300_000, 3 * MIB])) for _ in range(12)]
    for _ in range(8):
        live.pop(choose.randrange(len(live))).free()
        largest = pool.stats().largest
        pool.allocate(largest).free()
        with pytest.raises(OutOfMemoryError) as caught:
            pool.allocate(largest + 1)
        assert caught.value.largest == largest
        check(pool)


def test_the_cap_holds_when_four_threads_race_for_the_last_granule(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="16MiB", growth="2MiB")
    context = cu.out("cuCtxGetCurrent")

    def race(seed: int) -> None:
        choose = random.Random(seed)
        cu.ok("cuCtxSetCurrent", context)
        stream, live = cu.stream(), []
        for _ in range(300):
            if live and choose.random() < 0.5:
                live.pop().free()
                continue
            try:
                live.append(pool.allocate(choose.choice([512, MIB, 3 * MIB]), stream))
            except OutOfMemoryError:
                if live:
                    live.pop(0).free()
            assert sim.used() <= 16 * MIB

    run_together(*[partial(race, seed) for seed in range(4)])
    assert sim.peak() <= 16 * MIB
    check(pool)


FUNCTIONS = [
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamWaitEvent",
    "cuCtxPushCurrent",
    "cuMemcpyDtoH",
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("nth", [1, 2, 5])
def test_a_failing_driver_call_leaves_the_account_right_and_the_arena_usable(
    make: MakeArena, cu: Cu, function: str, nth: int
) -> None:
    choose = random.Random(nth)
    pool = make(cap="24MiB", growth="4MiB", compact=True)
    streams, live = [cu.stream(), cu.stream()], []
    sim.fail(function, "CUDA_ERROR_UNKNOWN", nth=nth)
    for _ in range(60):
        try:
            if live and choose.random() < 0.5:
                live.pop(choose.randrange(len(live))).free()
            else:
                stream = choose.choice(streams)
                live.append(pool.allocate(choose.choice([5000, MIB, 5 * MIB]), stream))
                cu.ok("cuMemsetD8Async", live[-1].ptr, 1, live[-1].nbytes, stream)  # it has been reserved
        except (arena.DriverError, OutOfMemoryError):
            pass
        check(pool)
    live.clear()
    sim.clear_planned()
    pool.allocate(24 * MIB).free()


def test_the_cap_can_be_lowered_while_running(make: MakeArena) -> None:
    pool = make(cap="32MiB")
    keep, drop = pool.allocate(4 * MIB), pool.allocate(20 * MIB)
    drop.free()
    pool.set_cap("8MiB")
    assert check(pool, highest_cap=32 * MIB).reserved <= 12 * MIB  # what the handles of the live block hold
    with pytest.raises(OutOfMemoryError, match="cap reached"):
        pool.allocate(6 * MIB)
    pool.set_cap("32MiB")
    pool.allocate(20 * MIB).free()
    assert keep.nbytes == 4 * MIB


def test_reserved_memory_is_spare_until_used_and_trim_keeps_it(make: MakeArena) -> None:
    pool = make(cap="64MiB", reserve="16MiB")
    assert (check(pool).spare, pool.stats().reserved) == (16 * MIB, 16 * MIB)
    calls = sim.calls("cuMemCreate")
    pool.allocate(10 * MIB).free()
    assert sim.calls("cuMemCreate") == calls
    pool.trim()
    assert check(pool).reserved == 16 * MIB
    pool.reserve("32MiB")
    assert check(pool).reserved == 32 * MIB


def test_headroom_is_never_touched(make: MakeArena, cu: Cu) -> None:
    pool = make(headroom="1GiB")
    pool.allocate(7 * GIB).free()
    pool.trim()
    with pytest.raises(OutOfMemoryError, match="headroom kept"):
        pool.allocate(7 * GIB + 1)
    other = cu.alloc(2 * GIB)
    with pytest.raises(OutOfMemoryError):
        pool.allocate(6 * GIB)
    cu.ok("cuMemFree", other)
    pool.allocate(6 * GIB).free()


def test_memory_taken_by_another_process_is_an_error_and_not_a_crash(make: MakeArena) -> None:
    pool = make()
    with sim.temporarily(other="6GiB"):
        with pytest.raises(OutOfMemoryError) as caught:
            pool.allocate(3 * GIB)
        assert caught.value.verdict in ("device full", "cap reached")
        pool.allocate(GIB).free()
        check(pool)
    pool.trim()
    pool.allocate(8 * GIB).free()


@pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
def test_a_device_that_has_room_again_is_not_blamed(make: MakeArena, vmm: bool) -> None:
    pool = make(cap="64MiB", vmm=vmm)
    with sim.temporarily(other=8 * GIB - MIB), pytest.raises(OutOfMemoryError, match="device full"):
        pool.allocate(2 * MIB)
    with pytest.raises(OutOfMemoryError, match="cap reached"):
        pool.allocate(65 * MIB)
    pool.allocate(64 * MIB).free()
    check(pool)


def test_lowering_the_cap_releases_what_is_spare_or_becomes_free(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="64MiB", reserve="64MiB")
    pool.set_cap("32MiB")
    assert pool.stats().reserved <= 32 * MIB
    other, stream = make(cap="32MiB", growth="2MiB"), cu.stream()
    buffers = [other.allocate(2 * MIB, stream) for _ in range(16)]
    with sim.temporarily(delay=50_000):
        for buffer in buffers:
            work.fill(buffer, 1, stream)
        del buffers[:8]
        other.set_cap("8MiB")  # too early to release any
    cu.ok("cuStreamSynchronize", stream)
    del buffer
    buffers.pop()
    assert other.stats().reserved <= 16 * MIB
    with pytest.raises(UsageError, match="more than the device's"):
        other.set_cap("9GiB")


def test_memory_freed_above_a_lowered_cap_goes_back_except_for_the_reserve(make: MakeArena, cu: Cu, work: Work) -> None:
    pool, stream = make(cap="64MiB", growth="2MiB"), cu.stream()
    buffers = [pool.allocate(GRANULE, stream) for _ in range(32)]
    pool.reserve("24MiB")
    with sim.temporarily(delay=200_000):
        work.fill(buffers[0], 1, stream)
        del buffers[:28]
        pool.set_cap("48MiB")  # too early to release any
        assert check(pool, highest_cap=64 * MIB).pending == 56 * MIB
    cu.ok("cuStreamSynchronize", stream)
    buffers.pop().free()  # pending memory goes with it, or soon after if the machine is busy
    while check(pool, highest_cap=64 * MIB).pending:
        pool.allocate(GRANULE, stream).free()
    assert check(pool, highest_cap=64 * MIB).reserved == 24 * MIB


def test_reserving_the_whole_cap_does_not_need_whole_granules(make: MakeArena) -> None:
    pool = make(cap="3MiB", reserve="3MiB")
    assert check(pool).reserved == 2 * MIB


def test_a_failed_reservation_is_not_kept(make: MakeArena, cu: Cu) -> None:
    pool = make()
    taken = cu.alloc(8 * GIB - 20 * MIB)
    with pytest.raises(OutOfMemoryError, match="device full"):
        pool.reserve("60MiB")
    cu.ok("cuMemFree", taken)
    pool.trim()
    assert (pool.stats().reserved, sim.used()) == (0, 0)


def test_an_impossible_reservation_takes_nothing_and_a_possible_one_is_kept(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    with pytest.raises(OutOfMemoryError):
        pool.reserve("1GiB")
    assert pool.stats().reserved == 0
    pool.reserve("3MiB")
    pool.trim()
    assert pool.stats().reserved == 4 * MIB
