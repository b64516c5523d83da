"""Real CuPy, whose arrays get their memory from the arena. Without a GPU: what the wheel does without a runtime."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator

import cupy
import pytest

import arena

from ..programs import run
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


def test_the_allocator_can_be_used_for_a_while(make: MakeArena) -> None:
    pool = make(cap="8MiB")
    with cupy.cuda.using_allocator(pool.malloc):
        assert cupy.cuda.get_allocator() == pool.malloc
        array = cupy.empty(512, dtype="u1")
    assert pool.stats().live == array.nbytes


def test_an_empty_array_is_an_array(pool: arena.Arena) -> None:
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


def test_the_one_line_is_enough() -> None:
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


def test_a_cupy_without_the_expected_internals_is_asked_the_public_way() -> None:
    code = """
import sys, types
from cupy_backends.cuda import stream
del stream.__pyx_capi__["get_stream_ptr"]
import cupy
cupy.cuda.get_current_stream = lambda device=None: types.SimpleNamespace(ptr=0)
import arena
pool = arena.Arena(device="sim:1GiB")
cupy.cuda.set_allocator(pool.malloc)
print(cupy.empty(10, dtype="u1").nbytes, pool.stats().allocations)
"""
    assert run(code).stdout == "10 1\n"
