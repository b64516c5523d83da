"""Real CuPy, whose arrays get their memory from the arena. Without a GPU: what the wheel does without a runtime."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

import cupy
import numpy as np
import pytest

import arena
from arena import UsageError, _core, sim

from ..programs import run
from ..threads import run_together
from .conftest import MIB, MakeArena, check


@pytest.fixture
def pool(make: MakeArena) -> Iterator[arena.Arena]:
    before = cupy.cuda.get_allocator()
    pool = make(cap="64MiB")
    cupy.cuda.set_allocator(pool.malloc)
    yield pool
    cupy.cuda.set_allocator(before)
    gc.collect()


def test_arrays_get_and_return_their_memory(pool: arena.Arena) -> None:
    array = cupy.empty((1000, 1000), dtype="f4")
    assert check(pool).requested == 4_000_000
    assert array.data.device_id == pool.device
    assert array.data.mem.size == 4_000_256
    del array
    assert check(pool).live == 0


def test_a_view_keeps_the_memory_of_its_array(pool: arena.Arena) -> None:
    array = cupy.empty(1000, dtype="u1")
    view = array[100:200].reshape(10, 10)
    address = array.data.ptr
    del array
    assert (pool.stats().requested, view.data.ptr) == (1000, address + 100)
    del view
    assert pool.stats().live == 0


def test_memory_can_be_freed_before_its_array_is_dropped_as_in_cupys_pool(pool: arena.Arena) -> None:
    array = cupy.empty(MIB)
    view = array[10:]
    array.data.mem.free()
    assert (pool.used_bytes(), array.data.mem.ptr) == (0, 0)
    again = cupy.empty(MIB)
    array.data.mem.free()  # does nothing: the memory belongs to another array by now
    del array, view
    assert pool.used_bytes() == again.nbytes
    del again
    assert pool.used_bytes() == 0


def test_live_memory_pressure_is_noticed_for_arrays_in_reserved_memory(pool: arena.Arena) -> None:
    fired: list[int] = []
    half = pool.stats().cap // 2
    size = half // 4
    del [cupy.empty(size, dtype="u1") for _ in range(6)][:]
    pool.on_pressure(0.5, lambda: fired.append(pool.used_bytes()), of="live")
    arrays = []
    while pool.used_bytes() <= half:
        assert fired == []
        arrays.append(cupy.empty(size, dtype="u1"))
    assert fired == [pool.used_bytes()]


def test_live_memory_pressure_is_noticed_by_arena_malloc_too() -> None:
    code = """
import arena, cupy
cupy.cuda.set_allocator(arena.malloc)
pool = arena.default_arena()
for _ in range(3):
    cupy.empty(1000)
pool.on_pressure(1e-9, lambda: print(pool.used_bytes()), of="live", rearm=1e-10)
for _ in range(2):
    cupy.empty(1000)  # of memory that is there
"""
    done = run(code, ARENA_DRIVER="sim")
    assert (done.stdout, done.stderr) == ("8192\n8192\n", "")


def test_the_allocator_can_be_set_for_a_with_block(make: MakeArena) -> None:
    pool = make(cap="8MiB")
    with cupy.cuda.using_allocator(pool.malloc):
        assert cupy.cuda.get_allocator() == pool.malloc
        array = cupy.empty(512, dtype="u1")
    assert pool.stats().live == array.nbytes


def test_an_empty_array_works(pool: arena.Arena) -> None:
    assert cupy.empty(0).size == 0
    with_address = cupy.cuda.alloc(0)
    assert (with_address.ptr != 0, pool.stats().requested) == (True, 0)


def test_out_of_memory_is_cupys_own_error_too(pool: arena.Arena) -> None:
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError) as caught:
        cupy.empty(65 * MIB, dtype="u1")
    assert isinstance(caught.value, arena.OutOfMemoryError)
    assert "cap reached; the largest request that would pass is 64 MiB" in str(caught.value)
    twin = pickle.loads(pickle.dumps(caught.value))
    assert (type(twin), str(twin)) == (arena.OutOfMemoryError, str(caught.value))


def test_arrays_in_a_cycle_are_collected_before_a_request_fails(pool: arena.Arena) -> None:
    gc.disable()
    try:
        cycle: list[object] = [cupy.empty(40 * MIB, dtype="u1")]
        cycle.append(cycle)
        del cycle
        assert pool.stats().live == 40 * MIB
        assert cupy.empty(40 * MIB, dtype="u1").nbytes == 40 * MIB
    finally:
        gc.enable()


def test_the_one_liner_is_enough() -> None:
    code = """
import arena, cupy
cupy.cuda.set_allocator(arena.malloc)
array = cupy.empty(1000)
print(arena.default_arena().stats().requested, arena.default_arena().stats().cap)
"""
    done = run(code, ARENA_DRIVER="sim", ARENA_CAP="25%")
    assert (done.stdout, done.stderr) == ("8000 2147483648\n", "")


def test_without_cupy_malloc_says_what_to_install() -> None:
    code = """
import sys
sys.modules["cupy"] = None
import arena
pool = arena.Arena(device="sim:1GiB")
print(pool.allocate(1000).nbytes)
pool.malloc(1000)
"""
    done = run(code)
    assert done.stdout == "1000\n"
    assert "install it (pip install cupy-cuda13x" in done.stderr.splitlines()[-1]


@pytest.fixture
def quick(pool: arena.Arena, monkeypatch: pytest.MonkeyPatch) -> Iterator[arena.Arena]:
    """A pool with free memory in it, of which malloc may use nothing but the quick path."""

    def fail(self: arena.Arena, size: object) -> NoReturn:
        raise AssertionError(f"malloc({size!r}) was left to Python")

    pool.malloc(32 * MIB)
    monkeypatch.setattr(arena.Arena, "_malloc_by_python", fail)
    before = _core.slow_requests()
    yield pool
    assert _core.slow_requests() == before


def test_a_hit_runs_no_python(quick: arena.Arena) -> None:
    pointers = [quick.malloc(size) for size in (0, 1, 512, 513, 4 * MIB)]
    assert [pointer.mem.size for pointer in pointers] == [512, 512, 512, 1024, 4 * MIB]
    assert all(type(pointer) is cupy.cuda.MemoryPointer for pointer in pointers)
    assert all(isinstance(pointer.mem, cupy.cuda.memory.BaseMemory) for pointer in pointers)
    assert [pointer.ptr for pointer in pointers] == [pointer.mem.ptr for pointer in pointers]
    assert check(quick).requested == 4 * MIB + 1026
    del pointers
    assert check(quick).live == 0


@pytest.mark.parametrize("size", [np.int64(1000), np.uint16(1000), np.array(1000)], ids=repr)
def test_anything_with_an_index_is_a_size(quick: arena.Arena, size: Any) -> None:
    pointer = quick.malloc(size)
    assert (quick.stats().requested, pointer.mem.size) == (1000, 1024)


@pytest.mark.parametrize("size", [1.5, "1000", None, True, np.float64(8), [8]], ids=repr)
@pytest.mark.parametrize("state", ["fresh", "used"])
def test_a_value_that_is_no_size_is_refused(pool: arena.Arena, size: Any, state: str) -> None:
    if state == "used":
        pool.malloc(1000)
    with pytest.raises(TypeError, match="a size in bytes must be an int, not"):
        pool.malloc(size)
    with pytest.raises(TypeError, match="takes exactly one argument"):
        pool.malloc()  # type: ignore[call-arg]
    assert check(pool).live == 0


def test_a_negative_or_huge_size_is_refused(pool: arena.Arena) -> None:
    with pytest.raises(UsageError, match="size=-1 is negative"):
        pool.malloc(-1)
    for size in (65 * MIB, (1 << 63) - 1, 1 << 63, 1 << 200):
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="cap reached"):
            pool.malloc(size)
    assert check(pool).live == 0


def test_an_error_in_the_users_index_is_passed_on(pool: arena.Arena) -> None:
    class Broken:
        def __index__(self) -> int:
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        pool.malloc(Broken())


def test_malloc_is_always_the_same_object(pool: arena.Arena, make: MakeArena) -> None:
    assert pool.malloc == pool.malloc == cupy.cuda.get_allocator()
    assert pool.malloc != make(cap="8MiB").malloc
    assert "set_allocator(pool.malloc)" in str(pool.malloc.__doc__)


def test_malloc_alone_keeps_its_pool_alive(cu: object, make: MakeArena) -> None:
    malloc = arena.Arena(cap="8MiB").malloc
    gc.collect()
    pointer = malloc(MIB)
    assert sim.used() > 0
    del malloc
    gc.collect()
    assert (pointer.mem.size, sim.used() > 0) == (MIB, True)
    del pointer
    assert sim.used() == 0


def test_after_close_malloc_says_so_and_arrays_stay_valid(pool: arena.Arena) -> None:
    array = cupy.empty(MIB, dtype="u1")
    pool.close()
    for _ in range(2):
        with pytest.raises(UsageError, match="the arena is closed: make another one"):
            pool.malloc(1000)
    assert sim.used() > 0
    del array
    assert sim.used() == 0


def test_memory_freed_above_a_lowered_cap_goes_back(pool: arena.Arena) -> None:
    array = cupy.empty(32 * MIB, dtype="u1")
    pool.set_cap("8MiB")
    del array
    assert check(pool, highest_cap=64 * MIB).reserved <= 8 * MIB


def test_memory_is_on_the_device_of_its_arena() -> None:
    pool = arena.Arena(device="sim:1GiB")
    for _ in range(2):  # on the slow path and on the fast path
        pointer = pool.malloc(1000)
        assert pointer.device_id == pointer.mem.device_id == pool.device > 0
        del pointer


def test_memory_is_returned_when_the_last_view_is_dropped_in_another_thread(quick: arena.Arena) -> None:
    views = [cupy.empty(MIB, dtype="u1")[1000:].reshape(-1, 8)[10:20]]
    thread = threading.Thread(target=views.clear)
    assert quick.stats().live == MIB
    thread.start()
    thread.join()
    assert check(quick).live == 0


def test_the_arrays_of_four_threads_never_overlap(pool: arena.Arena) -> None:
    sizes = [1, 512, 1000, 40_000, MIB, 3 * MIB]
    owners: dict[int, int] = {}  # who owns each 512 bytes
    problems: list[object] = []

    def work(number: int) -> None:
        kept: list[cupy.ndarray] = []
        for step in range(400):
            if len(kept) == 4:
                gone = kept.pop(step % 4)
                for unit in range(gone.data.ptr, gone.data.ptr + gone.nbytes, 512):
                    if owners.pop(unit) != number:
                        problems.append((number, unit))
                del gone
            array = cupy.empty(sizes[step * (number + 1) % len(sizes)], dtype="u1")
            for unit in range(array.data.ptr, array.data.ptr + array.nbytes, 512):
                if owners.setdefault(unit, number) != number:
                    problems.append((number, unit))
            kept.append(array)
        for array in kept:
            for unit in range(array.data.ptr, array.data.ptr + array.nbytes, 512):
                owners.pop(unit)

    run_together(*[partial(work, number) for number in range(4)])
    gc.collect()
    assert (problems, owners, check(pool).live) == ([], {}, 0)


def test_arena_malloc_is_as_fast_and_follows_the_default_arena() -> None:
    code = """
import arena, cupy
cupy.cuda.set_allocator(arena.malloc)
cupy.empty(1000)
by_python, arena._pool.defaults.malloc_by_python = arena._pool.defaults.malloc_by_python, None
slow = arena._core.slow_requests()
array = cupy.empty(1000, dtype="u1")
assert arena._core.slow_requests() == slow
print(arena.default_arena().stats().requested, cupy.cuda.get_allocator() is arena.malloc)
arena.default_arena().close()
arena._pool.defaults.malloc_by_python = by_python
other = cupy.empty(2000, dtype="u1")
print(arena.default_arena().stats().requested)
try:
    arena.malloc(-1)
except arena.UsageError as error:
    print(error)
"""
    done = run(code, ARENA_DRIVER="sim")
    assert (done.stdout, done.stderr) == ("1000 True\n2000\nsize=-1 is negative; a size is 0 or more bytes\n", "")
