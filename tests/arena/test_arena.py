"""The arena: the cap holds, the account adds up, data stays, and bad input is told so."""

from __future__ import annotations

import copy
import ctypes
import pickle
import random
import threading

import pytest

import arena
from arena import OutOfMemoryError, UsageError, sim

from ..programs import run
from ..simulated.cu import PER_THREAD, Cu
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
    assert refused  # the cap was met
    assert all(refused)  # and what was said to pass is less than what did not
    while live:
        live.pop()[0].free()
    pool.allocate(48 * MIB).free()  # all of it, in one piece
    check(pool)


def test_a_request_passes_whenever_its_granules_are_there(make: MakeArena) -> None:
    pool = make(cap="64MiB", compact=True)
    keep = [pool.allocate(GRANULE) for _ in range(32)]
    assert check(pool).reserved == 64 * MIB
    for buffer in keep[::2]:
        buffer.free()
    assert pool.allocate(32 * MIB).nbytes == 32 * MIB  # from sixteen pieces that do not touch
    check(pool)


def test_the_largest_request_that_is_said_to_pass_passes_and_the_next_does_not(make: MakeArena) -> None:
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


@pytest.mark.parametrize("queued", [False, True], ids=["idle", "work queued"])
def test_data_survives_rebacking_bit_for_bit(make: MakeArena, cu: Cu, work: Work, queued: bool) -> None:
    pool = make(cap="64MiB", growth="64MiB", compact=True)
    streams = [cu.stream(), cu.stream()]
    buffers = [pool.allocate(GRANULE, streams[i % 2]) for i in range(8)]
    before = [buffer.ptr for buffer in buffers]
    with sim.temporarily(delay=3000 if queued else 0):
        for i, buffer in enumerate(buffers):
            work.fill(buffer, i + 1, streams[i % 2])
        dropped = buffers[1::2]
        del buffers[1::2]
        while dropped:
            dropped.pop().free()
        big = pool.allocate(56 * MIB, streams[0])
    assert pool.stats().rebacked > 0
    assert [buffer.ptr for buffer in buffers] == before[::2]
    assert all(work.holds(buffer, 2 * i + 1) for i, buffer in enumerate(buffers))
    work.fill(big, 99, streams[0])
    assert all(work.holds(buffer, 2 * i + 1) for i, buffer in enumerate(buffers))
    check(pool)


def needs_rebacking(pool: arena.Arena) -> list[arena.Buffer]:
    """Leaves one live granule in each handle, so that only moving it makes room for more than the rest."""
    buffers = [pool.allocate(GRANULE) for _ in range(8)]
    for buffer in buffers[1::2]:
        buffer.free()
    return buffers[::2]


def test_rebacking_is_refused_when_it_is_switched_off(make: MakeArena) -> None:
    pool = make(cap="64MiB", compact=False)
    live = needs_rebacking(pool)
    with pytest.raises(OutOfMemoryError, match=r"moving live data would have made room") as caught:
        pool.allocate(56 * MIB)
    assert caught.value.verdict == "re-backing not allowed"
    assert len(live) == 4
    check(pool)


def test_rebacking_is_refused_while_another_thread_is_alive(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    live = needs_rebacking(pool)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        with pytest.raises(OutOfMemoryError, match="re-backing not allowed"):
            pool.allocate(56 * MIB)
    finally:
        done.set()
        thread.join()
    pool.allocate(56 * MIB).free()
    assert len(live) == 4


def test_rebacking_is_refused_while_a_stream_is_captured(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="64MiB", compact=True)
    stream = cu.stream()
    live = [*needs_rebacking(pool), pool.allocate(512, stream)]
    cu.ok("cuStreamBeginCapture", stream, 2)
    with pytest.raises(OutOfMemoryError, match="a stream is being captured"):
        pool.allocate(54 * MIB)
    assert pool.stats().rebacked == 0
    assert cu.cuStreamEndCapture(stream, ctypes.byref(ctypes.c_uint64())) == "CUDA_SUCCESS"
    assert len(live) == 5
    check(pool)


def test_memory_is_reused_at_once_on_its_own_stream(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="8MiB")
    stream = cu.stream()
    first = pool.allocate(MIB, stream)
    where = first.ptr
    first.free()
    before = pool.stats().driver_calls
    assert pool.allocate(MIB, stream).ptr == where
    assert pool.stats().driver_calls == before


def test_memory_of_another_stream_is_reused_behind_a_wait(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="4MiB")
    one, two = cu.stream(), cu.stream()
    with sim.temporarily(delay=5000):
        first = pool.allocate(4 * MIB, one)
        work.fill(first, 1, one)
        first.free()
        second = pool.allocate(4 * MIB, two)
        work.fill(second, 2, two)
    assert pool.stats().waits == 1
    assert work.holds(second, 2, two)


def test_memory_of_a_destroyed_stream_is_not_lost(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="4MiB")
    stream = cu.stream()
    buffer = pool.allocate(4 * MIB, stream)
    work.fill(buffer, 1, stream)
    cu.ok("cuStreamDestroy", stream)
    buffer.free()
    work.fill(pool.allocate(4 * MIB, cu.stream()), 2)
    cu.ok("cuCtxSynchronize_v2", 0)
    check(pool)


def test_memory_used_on_a_recorded_stream_waits_for_it(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="4MiB")
    one, two = cu.stream(), cu.stream()
    with sim.temporarily(delay=3000):
        first = pool.allocate(4 * MIB, one)
        work.cu.ok("cuStreamSynchronize", one)
        work.fill(first, 7, two)
        first.record_stream(two)
        first.free()
        second = pool.allocate(4 * MIB, one)
        work.fill(second, 8, one)
    assert work.holds(second, 8, one)


def test_handles_are_unmapped_only_when_their_streams_are_done(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="8MiB", growth="2MiB")
    stream = cu.stream()
    with sim.temporarily(delay=100_000):
        small = [pool.allocate(GRANULE, stream) for _ in range(4)]
        for buffer in small:
            work.fill(buffer, 1, stream)
        for buffer in small[:3]:
            buffer.free()
        assert check(pool).pending == 6 * MIB
        pool.trim()
        assert pool.stats().reserved == 8 * MIB
        cu.ok("cuStreamSynchronize", stream)
        pool.trim()
    assert check(pool).reserved == GRANULE


def test_the_cap_holds_when_four_threads_race_for_the_last_granule(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="16MiB", growth="2MiB")
    context = cu.out("cuCtxGetCurrent")
    wrong: list[object] = []

    def race(seed: int) -> None:
        choose = random.Random(seed)
        try:
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
                if sim.used() > 16 * MIB:
                    wrong.append(sim.used())
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=race, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
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
def test_a_driver_call_that_fails_leaves_the_account_right_and_the_arena_usable(
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
                cu.ok("cuMemsetD8Async", live[-1].ptr, 1, live[-1].nbytes, stream)  # it is there
        except (arena.DriverError, OutOfMemoryError):
            pass
        check(pool)
    live.clear()
    sim.clear_planned()
    pool.allocate(24 * MIB).free()


def test_a_cap_is_lowered_while_running(make: MakeArena) -> None:
    pool = make(cap="32MiB")
    keep, drop = pool.allocate(4 * MIB), pool.allocate(20 * MIB)
    drop.free()
    pool.set_cap("8MiB")
    assert check(pool, highest_cap=32 * MIB).reserved <= 12 * MIB  # what the live block's handles hold
    with pytest.raises(OutOfMemoryError, match="cap reached"):
        pool.allocate(6 * MIB)
    pool.set_cap("32MiB")
    pool.allocate(20 * MIB).free()
    assert keep.nbytes == 4 * MIB


def test_what_is_reserved_is_spare_until_it_is_used_and_is_kept_by_trim(make: MakeArena) -> None:
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


def test_memory_that_another_process_takes_is_an_error_and_not_a_crash(make: MakeArena) -> None:
    pool = make()
    with sim.temporarily(other="6GiB"):
        with pytest.raises(OutOfMemoryError) as caught:
            pool.allocate(3 * GIB)
        assert caught.value.verdict in ("device full", "cap reached")
        pool.allocate(GIB).free()
        check(pool)
    pool.trim()
    pool.allocate(8 * GIB).free()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"cap": "lots"}, r"cap='lots' is not a size; write bytes"),
        ({"cap": -1}, r"cap=-1 is not a size"),
        ({"cap": 1.5}, r"cap=1\.5 is not a size"),
        ({"cap": float("nan")}, r"cap=nan is not a size"),
        ({"cap": True}, r"cap=True is not a size"),
        ({"cap": "120%"}, r"cap='120%' is not a size"),
        ({"cap": "9GiB"}, r"cap=9663676416 is more than the device's 8589934592 bytes"),
        ({"reserve": "2GiB", "cap": "1GiB"}, r"reserve=2147483648 is more than cap=1073741824"),
        ({"headroom": 1.0}, r"headroom=8589934592 leaves nothing"),
        ({"growth": "x"}, r"growth='x' is not a size"),
        ({"device": 7}, r"device=7: there is no such device; there are 1"),
        ({"device": "gpu"}, r"device='gpu' is not accepted; write a number from 0 up, or \"sim:8GiB\""),
        ({"compact": "maybe"}, r"compact='maybe' is not accepted"),
    ],
)
def test_a_setting_that_cannot_be_is_named(make: MakeArena, settings: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make(**settings)


def test_settings_come_from_arguments_configure_and_environment_in_this_order(
    make: MakeArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena._arena, "_configured", {})
    assert make().stats().cap == 8 * GIB
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "50%")
    assert make().stats().cap == 4 * GIB
    monkeypatch.setenv("ARENA_CAP", "3GiB")
    assert make().stats().cap == 3 * GIB
    arena.configure(cap="2GiB")
    assert make().stats().cap == 2 * GIB
    assert make(cap=0.125).stats().cap == GIB
    monkeypatch.setenv("ARENA_HEADROOM", "much")
    with pytest.raises(UsageError, match="ARENA_HEADROOM='much' is not a size"):
        make()


@pytest.mark.parametrize("size", [-1, 1 << 50, (1 << 64) - 1, 1 << 70])
def test_sizes_that_cannot_be_are_refused(make: MakeArena, size: int) -> None:
    pool = make(cap="8MiB")
    with pytest.raises(UsageError if size < 0 else OutOfMemoryError):
        pool.allocate(size)
    check(pool)


def test_a_size_that_is_no_number_is_a_type_error(make: MakeArena) -> None:
    for size in ("12", 1.5, None, True):
        with pytest.raises(TypeError, match="a size in bytes is an int"):
            make(cap="8MiB").allocate(size)  # type: ignore[arg-type]


def test_an_allocation_of_nothing_has_an_address_of_its_own(make: MakeArena) -> None:
    pool = make(cap="8MiB")
    first, second = pool.allocate(0), pool.allocate(0)
    assert first.ptr != second.ptr
    assert (pool.stats().requested, pool.stats().live) == (0, 1024)


def test_a_buffer_is_freed_once_by_hand_by_with_or_when_dropped(make: MakeArena) -> None:
    pool = make(cap="8MiB")
    buffer = pool.allocate(1000)
    buffer.free()
    buffer.free()
    with pool.allocate(1000) as other:
        assert other.__cuda_array_interface__["data"] == (other.ptr, False)
    pool.allocate(1000)
    assert pool.stats().live == 0
    with pytest.raises(UsageError, match="this buffer was freed"):
        other.record_stream(0)


def test_foreign_and_stale_addresses_are_told_apart(make: MakeArena) -> None:
    pool = make(cap="8MiB")
    buffer = pool.allocate(1000)
    for address, text in ((4096, "is not an address of this arena"), (buffer.ptr + 512, "not the beginning of a live")):
        with pytest.raises(UsageError, match=text):
            pool._open.free(address)
    check(pool)


def test_buffers_outlive_a_closed_arena_and_are_given_back_when_freed(make: MakeArena, work: Work) -> None:
    pool = make(cap="8MiB")
    buffer = pool.allocate(MIB)
    pool.close()
    pool.close()
    with pytest.raises(UsageError, match="the arena is closed"):
        pool.allocate(1)
    assert repr(pool) == "<arena.Arena on device 0, closed>"
    work.fill(buffer, 5)
    assert work.holds(buffer, 5)
    buffer.free()
    assert sim.used() == 0


def test_an_arena_that_is_dropped_before_its_buffers_lives_as_long_as_they(make: MakeArena, work: Work) -> None:
    buffer = arena.Arena(cap="8MiB").allocate(MIB)
    work.fill(buffer, 5)
    assert work.holds(buffer, 5)
    del buffer
    assert (sim.used(), sim.census().reservations) == (0, 0)


def test_the_error_survives_pickling_and_copying(make: MakeArena) -> None:
    pool = make(cap="8MiB")
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(9 * MIB)
    for twin in (pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
        assert str(twin) == str(caught.value)
        assert (twin.verdict, twin.requested, twin.largest) == ("cap reached", 9 * MIB, 8 * MIB)
        assert isinstance(twin, MemoryError)
    assert len(str(caught.value).splitlines()) <= 25


END = """
import os, sys
import arena
pool = arena.Arena(cap="64MiB", device="sim:1GiB")
buffer = pool.allocate(1 << 20)
{end}
"""


@pytest.mark.parametrize(
    "end",
    ["", "del pool", "del buffer", "keep = [pool, buffer]; keep.append(keep)", "sys.exit(0)", "arena.sim.reset()"],
)
def test_the_interpreter_ends_in_any_order(end: str) -> None:
    done = run(END.format(end=end), ARENA_DRIVER="sim")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_may_drop_what_it_inherited() -> None:
    code = END.format(end="child = os.fork()") + "del buffer, pool\nif child: print(os.waitpid(child, 0)[1])\n"
    done = run(code, ARENA_DRIVER="sim")
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_the_process_has_no_open_arena_by_importing() -> None:
    done = run("import arena, os; print('libcudasim' in open('/proc/self/maps').read())")
    assert done.stdout == "False\n"


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread local", "relaxed"])
def test_a_capture_is_not_disturbed_by_allocating_and_freeing(make: MakeArena, cu: Cu, work: Work, mode: int) -> None:
    pool = make(cap="64MiB", growth="4MiB")
    stream, other = cu.stream(), cu.stream()
    warm, fence, foreign = pool.allocate(3 * MIB, stream), pool.allocate(512, stream), pool.allocate(40 * MIB, other)
    work.fill(foreign, 1, other)
    warm.free()
    foreign.free()
    cu.ok("cuStreamBeginCapture", stream, mode)
    with pool.allocate(3 * MIB, stream) as buffer:
        work.fill(buffer, 7, stream)
        for size in (5 * MIB, 50 * MIB):  # freed by another stream, or not mapped
            with pytest.raises(OutOfMemoryError, match="a stream is being captured") as caught:
                pool.allocate(size, stream)
        assert "before the capture begins" in str(caught.value)
        pool.trim()
        graph = ctypes.c_uint64()
        assert cu.cuStreamEndCapture(stream, ctypes.byref(graph)) == "CUDA_SUCCESS"
        launched = cu.out("cuGraphInstantiateWithFlags", graph.value, 0)
        cu.ok("cuGraphLaunch", launched, stream)
        assert work.holds(buffer, 7, stream)
    fence.free()
    pool.allocate(60 * MIB, stream).free()
    check(pool)


def test_a_simulated_device_is_made_once_for_each_size_and_again_after_a_reset(cu: Cu) -> None:
    for _ in range(2):
        pools = [arena.Arena(device=f"sim:{size}") for size in ("1GiB", "2GiB", "1GiB")]
        assert [pool.stats().device_total for pool in pools] == [GIB, 2 * GIB, GIB]
        assert pools[0].device == pools[2].device != pools[1].device
        pools.clear()
        sim.reset()
        sim.configure(devices=4)
    with pytest.raises(UsageError, match="memory: 'much' is not accepted"):
        arena.Arena(device="sim:much")


def test_trimming_with_compaction_gives_every_free_granule_back(make: MakeArena, work: Work) -> None:
    pool = make(cap="256MiB")
    buffers = [pool.allocate(GRANULE) for _ in range(64)]
    for i, buffer in enumerate(buffers):
        work.fill(buffer, i + 1)
    kept = buffers[::16]
    del buffer, buffers
    pool.trim()
    assert check(pool).reserved > 4 * GRANULE
    pool.trim(compact=True)
    assert check(pool).reserved == 4 * GRANULE
    assert all(work.holds(buffer, 16 * i + 1) for i, buffer in enumerate(kept))
    off = make(cap="16MiB", compact=False)
    with pytest.raises(UsageError, match="would move live data, which compact=False does not allow"):
        off.trim(compact=True)


def test_memory_of_another_threads_own_stream_is_waited_for(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="4MiB")
    context, stream = cu.out("cuCtxGetCurrent"), cu.stream()

    def use() -> None:
        cu.ok("cuCtxSetCurrent", context)
        buffer = pool.allocate(4 * MIB, PER_THREAD)
        for _ in range(5):
            work.fill(buffer, 1, PER_THREAD)
        buffer.free()

    with sim.temporarily(delay=20_000):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        pool.trim()
        buffer = pool.allocate(4 * MIB, stream)
        work.fill(buffer, 2, stream)
    assert work.holds(buffer, 2, stream)


@pytest.mark.parametrize("function", ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemcpyHtoD"])
def test_data_lost_in_a_rebacking_is_an_error_and_takes_nothing_else_along(make: MakeArena, function: str) -> None:
    pool = make(cap="64MiB", compact=True)
    live = needs_rebacking(pool)
    sim.fail(function, "CUDA_ERROR_UNKNOWN", nth=2, times=2)
    with pytest.raises(arena.ArenaError):
        pool.allocate(56 * MIB)
    sim.clear_planned()
    while live:
        live.pop().free()
    check(pool)
    pool.allocate(60 * MIB).free()


def test_a_buffer_has_one_owner(make: MakeArena) -> None:
    buffer = make(cap="8MiB").allocate(512)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="can be neither copied nor pickled"):
            duplicate(buffer)


def test_an_arena_that_cannot_wait_at_its_end_loses_memory_rather_than_unmap_it(cu: Cu, work: Work) -> None:
    stream = cu.stream()
    pool = arena.Arena(cap="8MiB", device="sim:1GiB")
    buffer = pool.allocate(MIB, stream)
    before = sim.census().mappings
    sim.fail("cuCtxSynchronize", "CUDA_ERROR_UNKNOWN")
    del pool, buffer
    assert sim.census().mappings == before
    assert sim.races() == []


def test_a_lowered_cap_takes_what_is_spare_or_becomes_free(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="64MiB", reserve="64MiB")
    pool.set_cap("32MiB")
    assert pool.stats().reserved <= 32 * MIB
    other, stream = make(cap="32MiB", growth="2MiB"), cu.stream()
    buffers = [other.allocate(2 * MIB, stream) for _ in range(16)]
    with sim.temporarily(delay=50_000):
        for buffer in buffers:
            work.fill(buffer, 1, stream)
        del buffers[:8]
        other.set_cap("8MiB")  # too early to take any
    cu.ok("cuStreamSynchronize", stream)
    del buffer
    buffers.pop()
    assert other.stats().reserved <= 16 * MIB
    with pytest.raises(UsageError, match="more than the device's"):
        other.set_cap("9GiB")


def test_a_reservation_that_cannot_be_takes_nothing_and_one_that_can_is_kept(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    with pytest.raises(OutOfMemoryError):
        pool.reserve("1GiB")
    assert pool.stats().reserved == 0
    pool.reserve("3MiB")
    pool.trim()
    assert pool.stats().reserved == 4 * MIB


@pytest.mark.parametrize("cap", ["9" * 400 + ".0", "9" * 5000, "\u0663GiB", "1e3GiB", "", " ", "GiB", "1 GB"])
def test_hostile_sizes_are_refused(make: MakeArena, cap: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        make(cap=cap)


@pytest.mark.parametrize("moment", ["re-backing", "end"])
def test_a_python_function_in_a_stream_does_not_hang_the_arena(moment: str) -> None:
    code = """
import ctypes, sys
import arena
from arena import sim
from tests.simulated.cu import Cu, MIB
sim.configure(delay=20_000)
cu = Cu()
cu.start()
pool = arena.Arena(cap="64MiB")
buffers = [pool.allocate(2 * MIB) for _ in range(8)]
del buffers[1::2]
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def host(data):
    print("called")
cu.ok("cuLaunchHostFunc", cu.stream(), host, 0)
if sys.argv[1] == "re-backing":
    pool.allocate(56 * MIB)
pool.close()
del buffers, pool
"""
    done = run(code, moment, timeout=30, ARENA_DRIVER="sim")
    assert (done.stdout, done.stderr) == ("called\n", "")
