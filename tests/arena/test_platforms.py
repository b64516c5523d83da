"""Unusual platforms: few addresses, odd refusals, devices that share the host's memory, and a driver that is slow to
say how much is free."""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

import arena
from arena import OutOfMemoryError, sim

from .. import forked
from ..simulated.conftest import fresh
from ..simulated.cu import Cu
from .conftest import GIB, MIB, MakeArena, check

NOT_READY, NOT_SUPPORTED = "CUDA_ERROR_NOT_READY", "CUDA_ERROR_NOT_SUPPORTED"
CALLS = ("cuMemCreate", "cuMemMap", "cuMemSetAccess")


def core_of(pool: arena.Arena) -> arena._core.Arena:
    assert pool._core is not None
    return pool._core


# Addresses


def test_addresses_are_reserved_for_eight_times_the_cap(make: MakeArena) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert core_of(make(cap="1GiB")).addresses == 8 * GIB


@pytest.mark.parametrize(("space", "times"), [("7GiB", "4"), ("3GiB", "2"), ("1536MiB", "9/8")])
def test_where_there_are_fewer_addresses_the_arena_takes_what_it_gets_and_says_so(
    make: MakeArena, space: str, times: str
) -> None:
    sim.configure(address_space=space)
    with pytest.warns(RuntimeWarning, match=f"arena on device 0: the driver reserves .* of addresses, {times} times"):
        pool = make(cap="1GiB")
    assert pool.vmm
    pool.allocate(GIB).free()
    check(pool)


@pytest.mark.parametrize("reserve", [0, "4MiB"])
def test_without_addresses_plain_segments_are_used(make: MakeArena, reserve: int | str) -> None:
    sim.configure(address_space="1GiB")
    text = "the driver reserves no addresses for a cap of 1 GiB (CUDA_ERROR_OUT_OF_MEMORY): plain segments are used"
    with pytest.warns(RuntimeWarning, match=re.escape(text)):
        pool = make(cap="1GiB", reserve=reserve)
    assert not pool.vmm
    pool.allocate(MIB).free()
    check(pool)


def test_raising_the_cap_without_enough_addresses_leaves_it_as_it_was(make: MakeArena) -> None:
    sim.configure(address_space="1GiB")
    pool = make(cap="128MiB")
    with pytest.raises(arena.DriverError, match="cuMemAddressReserve failed: CUDA_ERROR_OUT_OF_MEMORY"):
        pool.set_cap("4GiB")
    assert pool.stats().cap == 128 * MIB
    pool.allocate(128 * MIB).free()
    check(pool)


def test_a_request_that_finds_memory_but_no_contiguous_addresses_says_so(make: MakeArena) -> None:
    sim.configure(address_space="80MiB")
    with pytest.warns(RuntimeWarning, match="72 MiB of addresses, 9/8 times the cap"):
        pool = make(cap="64MiB", growth="2MiB")
    blocks = sorted((pool.allocate(2 * MIB) for _ in range(32)), key=lambda block: block.ptr)
    kept = blocks.pop(16)
    for block in blocks:
        block.free()
    with pytest.raises(OutOfMemoryError, match="Next: free the blocks between") as caught:
        pool.allocate(44 * MIB)
    assert (caught.value.verdict, caught.value.largest) == ("too few addresses", 38 * MIB)
    kept.free()
    pool.allocate(44 * MIB).free()
    check(pool)


# Refusals


@pytest.mark.parametrize("call", CALLS)
def test_a_driver_that_is_not_ready_counts_as_full(make: MakeArena, call: str) -> None:
    pool = make(cap="64MiB", growth="2MiB")
    kept = pool.allocate(2 * MIB)
    sim.fail(call, NOT_READY, times=1 << 62)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(4 * MIB)
    assert caught.value.verdict == "device full"
    sim.clear_planned()
    pool.allocate(4 * MIB).free()
    kept.free()
    check(pool)


def make_and_allocate(make: MakeArena, reserve: int | str) -> tuple[arena.Arena, arena.Buffer]:
    pool = make(cap="64MiB", reserve=reserve)
    return pool, pool.allocate(3 * MIB)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("reserve", [0, "4MiB"])
def test_the_arena_does_without_virtual_memory_that_turns_out_unsupported(
    make: MakeArena, call: str, reserve: int | str
) -> None:
    sim.fail(call, NOT_SUPPORTED, times=1 << 62)
    text = f"arena on device 0: {call} is not supported here: plain segments are used"
    with pytest.warns(RuntimeWarning, match=text):
        pool, first = make_and_allocate(make, reserve)
    assert not pool.vmm
    assert pool.stats().requested == 3 * MIB
    assert pool.stats().reserved >= (4 * MIB if reserve else 3 * MIB)
    second = pool.allocate(5 * MIB, stream=2)
    first.free()
    second.free()
    pool.reserve("16MiB")
    check(pool)


@pytest.mark.parametrize("call", CALLS)
def test_threads_that_find_virtual_memory_unsupported_all_get_plain_segments(make: MakeArena, call: str) -> None:
    sim.fail(call, NOT_SUPPORTED, times=1 << 62)
    pool = make(cap="64MiB")
    blocks: list[arena.Buffer] = []
    gate = threading.Barrier(4)

    def ask() -> None:
        gate.wait()
        blocks.append(pool.allocate(MIB))

    with pytest.warns(RuntimeWarning, match="plain segments are used"), ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: ask(), range(4)))
    assert len({block.ptr for block in blocks}) == 4
    assert not pool.vmm
    blocks.clear()
    check(pool)


def test_once_virtual_memory_has_worked_a_refusal_is_an_error(make: MakeArena) -> None:
    pool = make(cap="64MiB", growth="2MiB")
    kept = pool.allocate(2 * MIB)
    sim.fail("cuMemCreate", NOT_SUPPORTED)
    with pytest.raises(arena.DriverError, match="cuMemCreate failed: CUDA_ERROR_NOT_SUPPORTED"):
        pool.allocate(4 * MIB)
    assert pool.vmm
    kept.free()
    check(pool)


# What the device has left


def calls_of(name: str) -> int:
    return sim.call_table().get(name, 0)


@pytest.mark.parametrize("settings", [{}, {"headroom": "1GiB"}, {"vmm": False}], ids=["cap", "headroom", "plain"])
def test_stats_makes_no_driver_calls(make: MakeArena, settings: dict[str, object]) -> None:
    pool = make(cap="4GiB", **settings)
    block = pool.allocate(MIB)
    before = sim.call_table()
    for _ in range(10):
        pool.stats()
    assert sim.call_table() == before
    block.free()


def test_stats_accounts_for_what_the_arena_itself_took_and_returned(make: MakeArena) -> None:
    pool = make(cap="4GiB")
    block = pool.allocate(GIB)
    assert pool.stats().device_free == 8 * GIB - pool.stats().reserved == 8 * GIB - sim.used()
    block.free()
    pool.trim()
    assert pool.stats().device_free == 8 * GIB


@pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
@pytest.mark.parametrize("headroom", [0, "1GiB"])
def test_a_request_asks_at_most_once_how_much_is_free(make: MakeArena, cu: Cu, vmm: bool, headroom: int | str) -> None:
    pool = make(cap="8GiB", headroom=headroom, vmm=vmm, compact=False)
    other = cu.alloc(6 * GIB)  # the device refuses what the cap allows
    for size in (MIB, GIB, 3 * GIB):
        before = calls_of("cuMemGetInfo")
        with contextlib.ExitStack() as stack:
            if size == 3 * GIB:
                stack.enter_context(pytest.raises(OutOfMemoryError, match=r"device full|headroom kept"))
            core_of(pool).allocate(size).free()  # one attempt: pool.allocate() makes more
        asked = calls_of("cuMemGetInfo") - before
        assert asked == 1 if headroom or size == 3 * GIB else asked <= 1
    cu.ok("cuMemFree", other)


def test_memory_on_its_way_back_is_not_counted_as_free_twice(make: MakeArena, cu: Cu) -> None:
    """The driver already has it and says so; the arena does not know yet that it is gone."""
    given_back, go_on = threading.Event(), threading.Event()
    go_on.set()

    class Segment:
        def __init__(self, size: int) -> None:
            self.ptr = cu.alloc(size)

        def __del__(self) -> None:
            driver = Cu()
            driver.start()  # this may be another thread
            driver.ok("cuMemFree", self.ptr)
            driver.ok("cuDevicePrimaryCtxRelease", 0)
            given_back.set()
            go_on.wait(30)

    pool = make(headroom="1GiB", growth="2MiB", upstream=Segment, compact=False)
    other = cu.alloc(4 * GIB)
    kept = pool.allocate(GIB)
    pool.allocate(GIB).free()
    cu.ok("cuStreamSynchronize", 0)
    go_on.clear()
    trimming = threading.Thread(target=pool.trim)
    trimming.start()
    assert given_back.wait(30)
    threading.Timer(0.1, go_on.set).start()
    with pytest.raises(OutOfMemoryError, match="headroom kept"):
        core_of(pool).allocate(2 * GIB + 512 * MIB)  # of 3 GiB that are free
    trimming.join()
    assert pool.stats().device_free == 3 * GIB
    kept.free()
    cu.ok("cuMemFree", other)


@pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
def test_headroom_is_kept_even_if_the_driver_does_not_say_how_much_is_free(make: MakeArena, cu: Cu, vmm: bool) -> None:
    pool = make(cap="4GiB", headroom="1GiB", vmm=vmm)
    other = cu.alloc(6 * GIB)  # which the arena does not know about
    for grow in (lambda: pool.allocate(2 * GIB), lambda: pool.reserve("2GiB")):
        sim.fail("cuMemGetInfo", "CUDA_ERROR_UNKNOWN")
        with pytest.raises(arena.DriverError, match="cuMemGetInfo failed: CUDA_ERROR_UNKNOWN"):
            grow()
    assert sim.used() == 6 * GIB
    cu.ok("cuMemFree", other)


# Devices that share the host's memory


def test_an_integrated_device_says_that_it_is_one(make: MakeArena) -> None:
    fresh(integrated=True, page_cache="2GiB")
    [device] = arena.Driver.open("sim").devices()
    assert device.integrated
    assert device.free == 6 * GIB  # files cached by the host do not count as free


# A driver that waits


def test_reading_peers_does_not_deadlock_with_a_host_function_that_needs_the_gil() -> None:
    """Enabling access may wait for the device, which waits for that function, which waits for the GIL."""
    code = """
import ctypes, threading, time
import arena
from arena import sim
from tests.simulated.cu import Cu

sim.configure(sync_unmap=True)
pool = arena.Arena(cap="64MiB", growth="2MiB")
pool.allocate(1 << 20)
cu = Cu()
cu.start()
began, go_on = threading.Event(), threading.Event()
host = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: (began.set(), go_on.wait(10)))
cu.ok("cuLaunchHostFunc", cu.stream(), host, None)
began.wait()
asking = threading.Thread(target=pool.allocate, args=(8 << 20,))
asking.start()
time.sleep(0.3)  # it has the lock by now
threading.Timer(0.3, go_on.set).start()
core = pool._core
print(pool.peers, core.rdma, core.addresses >> 20, core.remark, asking.join())
"""
    done = forked.run(code, imported=("arena",), ARENA_DRIVER="sim")
    assert (done.stdout, done.stderr) == ("[] True 512  None\n", "")
