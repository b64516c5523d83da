"""Which memory a request gets when several streams are busy, what it waits for, and what goes back to the device."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from arena import sim

from ..programs import run
from ..simulated.cu import Cu
from .conftest import GIB, MIB, MakeArena, Work, check
from .streams import both_kinds, new_stream, number_of

virtual_and_plain = pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])


@both_kinds
@virtual_and_plain
def test_independent_streams_never_wait_for_each_other_far_below_the_cap(
    make: MakeArena, cu: Cu, work: Work, kind: str, vmm: bool
) -> None:
    pool = make(cap="1GiB", vmm=vmm)
    streams = [new_stream(cu, kind) for _ in range(2)]
    sizes = [512, 4096, 40_000, 300_000, MIB]
    with sim.temporarily(delay=100):
        for step in range(4000):
            stream = streams[step % 2]
            with pool.allocate(sizes[step // 2 % len(sizes)], stream) as buffer:
                if step % 8 < 2:  # each has work in flight all the time
                    work.cu.ok("cuMemsetD8Async", buffer.ptr, step % 256, 512, number_of(stream))
    cu.ok("cuCtxSynchronize_v2", 0)
    s = check(pool)
    assert (s.waits, s.failures) == (0, 0)
    assert s.peak_reserved <= 256 * MIB


@both_kinds
@virtual_and_plain
def test_at_the_cap_the_memory_of_another_stream_is_reused_behind_a_wait(
    make: MakeArena, cu: Cu, work: Work, kind: str, vmm: bool
) -> None:
    pool = make(cap="8MiB", growth="2MiB", vmm=vmm)
    streams = [new_stream(cu, kind) for _ in range(2)]
    with sim.temporarily(delay=20_000):
        for step in range(6):
            stream = streams[step % 2]
            buffer = pool.allocate(8 * MIB, stream)
            work.fill(buffer, step, number_of(stream))
            buffer.free()
    cu.ok("cuCtxSynchronize_v2", 0)
    s = check(pool)
    assert 0 < s.waits <= 6
    assert s.reserved == 8 * MIB


def test_memory_known_to_be_done_is_reused_before_new_memory_is_taken(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="1GiB", growth="2MiB")
    streams = [cu.owned_stream() for _ in range(2)]
    for step in range(100):
        stream = streams[step % 2]
        with pool.allocate(4 * MIB, stream) as buffer:
            work.fill(buffer, step, stream.ptr)
        cu.ok("cuStreamSynchronize", stream.ptr)
    s = check(pool)
    assert (s.waits, s.peak_reserved) == (0, 4 * MIB)


NO_DEADLOCK = """
import ctypes, sys, threading
import arena
from arena import sim
from tests.arena.streams import new_stream, number_of
from tests.simulated.cu import Cu, MIB
kind, first, second = sys.argv[1], int(sys.argv[2]) * MIB, int(sys.argv[3]) * MIB
cu = Cu()
cu.start()
pool = arena.Arena(cap=sys.argv[7], growth="2MiB")
a, b = new_stream(cu, kind), new_stream(cu, kind)
if sys.argv[7] != "8MiB":  # others have all but so much of the device
    cu.out("cuMemAlloc", arena.driver().devices()[0].total - 8 * MIB)
    for stream in (a, b):
        with pool.allocate(8 * MIB, stream) as buffer:
            cu.ok("cuMemsetD8Async", buffer.ptr, 1, buffer.nbytes, number_of(stream))
if sys.argv[4] == "known":
    pool.allocate(512, b).free()
for _ in range(int(sys.argv[5])):
    pool.allocate(8 * MIB, a).free()
later = int(sys.argv[6]) * MIB
seen = threading.Event()
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def host(data):
    if not seen.wait(2):
        print("blocked")
buffer = pool.allocate(first, a)
beside = pool.allocate(later, a) if later else None
cu.ok("cuMemsetD8Async", buffer.ptr, 1, buffer.nbytes, number_of(a))
buffer.free()
cu.ok("cuLaunchHostFunc", number_of(a), host, 0)
if beside:
    beside.free()
buffer = pool.allocate(second, b)
cu.ok("cuMemsetD8Async", buffer.ptr, 2, buffer.nbytes, number_of(b))
cu.ok("cuStreamSynchronize", number_of(b))
seen.set()
print(cu.read(buffer.ptr, buffer.nbytes) == bytes([2]) * buffer.nbytes)
cu.ok("cuStreamSynchronize", number_of(a))
print(sim.races())
"""


@both_kinds
@pytest.mark.parametrize("sizes", [(8, 8), (6, 4)], ids=["the same", "in parts"])
@pytest.mark.parametrize(
    ("second", "frees"),
    [
        ("known", 0),
        ("new", 0),
        ("known", 50),  # with numbers: events are recorded after 64 frees, and after 64 more for each wait
    ],
    ids=["two streams known", "the other is new", "after many frees"],
)
def test_a_stream_waits_for_what_was_freed_and_not_for_later_work(
    kind: str, sizes: tuple[int, int], second: str, frees: int
) -> None:
    """A function in the first stream waits for the second stream's work, which must not wait for the function."""
    check_no_deadlock(kind, *map(str, sizes), second, str(frees), "0", "8MiB")


def check_no_deadlock(*arguments: str) -> None:
    done = run(NO_DEADLOCK, *arguments, timeout=60, ARENA_DRIVER="sim", CUDASIM_RACES="1", CUDASIM_DELAY="1000")
    assert (done.stdout, done.stderr) == ("True\n[]\n", "")


@pytest.mark.parametrize("sizes", [(8, 8), (6, 4)], ids=["the same", "in parts"])
def test_a_stream_waits_for_no_later_work_after_any_number_of_frees(sizes: tuple[int, int]) -> None:
    check_no_deadlock("object", *map(str, sizes), "known", "500", "0", "8MiB")


@both_kinds
def test_a_stream_does_not_wait_for_what_was_freed_later_beside_its_memory(kind: str) -> None:
    check_no_deadlock(kind, "4", "4", "new", "0", "4", "8MiB")


@both_kinds
def test_a_stream_waits_for_no_later_work_where_the_device_has_less_than_the_cap(kind: str) -> None:
    check_no_deadlock(kind, "8", "8", "known", "0", "0", "64MiB")


@both_kinds
def test_growing_costs_no_more_with_four_thousand_streams(make: MakeArena, cu: Cu, kind: str) -> None:
    pool = make(growth="2MiB")
    one, kept = new_stream(cu, kind), []

    def grow() -> dict[str, int]:
        """How often the next request that grows the arena calls each driver function."""
        while True:
            reserved, before = pool.stats().reserved, sim.call_table()
            kept.append(pool.allocate(4 * MIB, one))
            after = sim.call_table()
            if pool.stats().reserved > reserved:
                return {name: count - before.get(name, 0) for name, count in after.items()}

    grow()
    alone = grow()
    streams = [new_stream(cu, kind) for _ in range(4000)]
    for stream in streams:
        pool.allocate(512, stream).free()
    grow()
    among_many = grow()
    asked = ("cuStreamIsCapturing", "cuStreamGetCaptureInfo")
    assert sum(among_many.get(name, 0) for name in asked) <= sum(alone.get(name, 0) for name in asked)
    assert sum(among_many.values()) <= sum(alone.values()) + 4
    check(pool)


def return_memory(call: Callable[[], None], most: int, again: Callable[[], None] | None = None) -> None:
    """Call trim() or close(), which wait 0.15 s for queued work, and `again` if a very busy machine needs longer."""
    deadline = time.monotonic() + 60
    begun = time.monotonic()
    call()
    while sim.used() > most and time.monotonic() < deadline:
        assert time.monotonic() - begun >= 0.15, "it did not wait, and kept memory"
        begun = time.monotonic()
        (again or call)()


@both_kinds
@virtual_and_plain
def test_trim_on_a_nearly_idle_device_returns_everything(
    make: MakeArena, cu: Cu, work: Work, kind: str, vmm: bool
) -> None:
    pool = make(cap="64MiB", growth="2MiB", vmm=vmm)
    stream = new_stream(cu, kind)
    left: list[int] = []
    with sim.temporarily(delay=20):
        for step in range(20):
            buffers = [pool.allocate(4 * MIB, stream) for _ in range(4)]
            for buffer in buffers:
                work.fill(buffer, step, number_of(stream))
            while buffers:
                buffers.pop().free()
            return_memory(pool.trim, 0)
            left.append(pool.stats().reserved)
    assert left == [0] * 20


@both_kinds
@virtual_and_plain
def test_lowering_the_cap_lowers_what_is_reserved(make: MakeArena, cu: Cu, work: Work, kind: str, vmm: bool) -> None:
    pool = make(cap="64MiB", growth="2MiB", vmm=vmm)
    stream = new_stream(cu, kind)
    with sim.temporarily(delay=20):
        for step in range(20):
            buffers = [pool.allocate(4 * MIB, stream) for _ in range(16)]
            for buffer in buffers:
                work.fill(buffer, step, number_of(stream))
            while buffers:
                buffers.pop().free()
            pool.set_cap("16MiB")
            for _ in range(100):  # a busy machine needs longer than the arena waits
                if pool.stats().reserved <= 16 * MIB:
                    break
                cu.ok("cuStreamSynchronize", number_of(stream))
                pool.allocate(512, stream).free()
            assert check(pool, highest_cap=64 * MIB).reserved <= 16 * MIB
            pool.set_cap("64MiB")


@both_kinds
def test_a_lowered_cap_takes_effect_after_much_work_in_flight(make: MakeArena, cu: Cu, work: Work, kind: str) -> None:
    pool = make(cap="64MiB", growth="2MiB")
    stream = new_stream(cu, kind)
    with sim.temporarily(delay=400_000):
        buffer = pool.allocate(64 * MIB, stream)
        work.fill(buffer, 1, number_of(stream))
        buffer.free()
        pool.set_cap("16MiB")
        assert check(pool, highest_cap=64 * MIB).reserved == 64 * MIB
    cu.ok("cuCtxSynchronize_v2", 0)
    pool.allocate(512, stream).free()
    assert check(pool, highest_cap=64 * MIB).reserved <= 16 * MIB


@both_kinds
@virtual_and_plain
def test_a_closed_arena_holds_only_what_a_live_buffer_lies_on(
    make: MakeArena, cu: Cu, work: Work, kind: str, vmm: bool
) -> None:
    pool = make(cap="64MiB", growth="2MiB", vmm=vmm)
    stream = new_stream(cu, kind)
    with sim.temporarily(delay=20):
        buffers = [pool.allocate(2 * MIB, stream) for _ in range(16)]
        for buffer in buffers:
            work.fill(buffer, 7, number_of(stream))
        kept = buffers.pop(5)
        while buffers:
            buffers.pop().free()
        return_memory(pool.close, 2 * MIB, again=pool._open.close)
        assert sim.used() == 2 * MIB
        assert work.holds(kept, 7, number_of(stream))
    kept.free()  # outside the delay: a free waits 0.3 ms at most
    assert sim.used() == 0


def test_memory_of_many_streams_is_combined_for_one_large_request(make: MakeArena, cu: Cu, work: Work) -> None:
    """It was freed on 64 streams, half of which are gone, and is requested by another one."""
    pool = make(cap="256MiB", growth="4MiB")
    streams = [cu.owned_stream() if i % 2 else cu.stream() for i in range(64)]
    with sim.temporarily(delay=2000):
        buffers = [pool.allocate(4 * MIB, stream) for stream in streams]
        for buffer, stream in zip(buffers, streams, strict=True):
            work.fill(buffer, 1, number_of(stream))
        while streams:
            buffers.pop().free()
            if isinstance(stream := streams.pop(), int):
                cu.ok("cuStreamDestroy", stream)
        last = cu.stream()
        whole = pool.allocate(256 * MIB, last)
        cu.ok("cuMemsetD8Async", whole.ptr, 2, GIB // 4, last)
    assert work.holds(whole, 2, last)
    check(pool)
