"""Problems that people reported to other projects, each named after its issue.

Tests that need no stream run twice: with real CuPy arrays, and with the arena's own buffers. (Without a GPU, CuPy has
only the default stream.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import cupy
import pytest

from arena import Arena, OutOfMemoryError, sim

from ..simulated.cu import PER_THREAD, Cu
from ..threads import run_together
from .conftest import GIB, MIB, MakeArena, Work, check

Take = Callable[[Arena, int], object]  # the result is freed when it is dropped


def take_array(pool: Arena, size: int) -> object:
    with cupy.cuda.using_allocator(pool.malloc):
        return cupy.empty(size, dtype="u1")


def take_buffer(pool: Arena, size: int) -> object:
    return pool.allocate(size)


@pytest.fixture(params=[take_array, take_buffer], ids=["CuPy", "buffers"])
def take(request: pytest.FixtureRequest) -> Take:
    function: Take = request.param
    return function


def take_all(pool: Arena, size: int, take: Take, taken: list[object]) -> None:
    while True:
        taken.append(take(pool, size))
        assert sim.used() <= pool.stats().cap


def test_httomo_667_a_temporary_fits_again_beside_older_results(make: MakeArena, take: Take) -> None:
    """A: a result of 1 GiB and a temporary of 4 GiB; B: a result of 1 GiB; then A again. On 8 GiB."""
    pool = make()

    def a() -> object:
        result, temporary = take(pool, GIB), take(pool, 4 * GIB)
        assert temporary is not None
        return result

    results = [a(), take(pool, GIB), a()]
    assert len(results) == 3
    assert check(pool).live == 3 * GIB


def test_cupy_7678_freed_memory_serves_a_larger_request_under_the_limit(make: MakeArena, take: Take) -> None:
    """With a limit of 1 GiB: take 512 MiB, free it, take 768 MiB."""
    pool = make(cap="1GiB")
    take(pool, 512 * MIB)
    array = take(pool, 768 * MIB)
    assert check(pool).peak_reserved <= GIB
    assert array is not None
    assert pool.stats().live == 768 * MIB


def test_cupy_1256_a_freed_block_and_the_rest_serve_one_large_request(make: MakeArena, take: Take) -> None:
    """Take 30 % twice, free the second, ask for 60 %."""
    pool = make()
    arrays = [take(pool, 8 * GIB * 3 // 10) for _ in range(2)]
    del arrays[1]
    arrays.append(take(pool, 8 * GIB * 6 // 10))
    assert check(pool).requested == 8 * GIB * 3 // 10 + 8 * GIB * 6 // 10


def test_cupy_536_scattered_free_memory_serves_one_large_request(make: MakeArena, take: Take) -> None:
    """2.3 GB are free in pieces, and 1 GB is requested."""
    pool = make(cap="4GiB")
    pieces = [take(pool, 100 * MIB) for _ in range(40)]
    del pieces[::2]
    assert pool.stats().reserved - pool.stats().live >= 1900 * MIB
    pieces.append(take(pool, 1000 * MIB))
    assert check(pool).live == 3000 * MIB


def test_pytorch_35901_one_small_block_holds_back_only_its_own_handle(make: MakeArena, take: Take) -> None:
    """All but the small block's own handle goes back to the device."""
    pool = make()
    large = take(pool, 6 * GIB)
    small = take(pool, 4096)
    del large
    pool.trim()
    assert check(pool).reserved <= 64 * MIB
    pool.trim(compact=True)
    assert check(pool).reserved == 2 * MIB
    assert small is not None


def test_rmm_2039_and_orion_5_two_streams_take_turns_with_most_of_the_memory(
    make: MakeArena, cu: Cu, work: Work
) -> None:
    pool = make(cap="64MiB")
    streams = [cu.stream(), cu.stream()]
    for turn in range(6):
        stream = streams[turn % 2]
        with pool.allocate(48 * MIB, stream) as buffer:
            work.fill(buffer, turn + 1, stream)
            if turn == 5:
                assert work.holds(buffer, 6, stream)
    check(pool)


def test_cupy_8068_memory_is_safe_across_streams_and_after_a_stream_is_destroyed(
    make: MakeArena, cu: Cu, work: Work
) -> None:
    """An array is used on a stream that is not its own, then dropped; a stream is destroyed with memory freed on it."""
    pool = make(cap="8MiB")
    own, other = cu.stream(), cu.stream()
    array = pool.allocate(8 * MIB, own)
    with sim.temporarily(delay=2000):
        work.fill(array, 3, other)
        array.record_stream(other)
        array.free()
        following = pool.allocate(8 * MIB, own)
        work.fill(following, 4, own)
    assert work.holds(following, 4, own)
    following.free()
    cu.ok("cuStreamDestroy", own)
    assert pool.allocate(8 * MIB, other).nbytes == 8 * MIB
    check(pool)


def test_cupy_5069_the_per_thread_default_stream_is_another_stream_in_each_thread(
    make: MakeArena, cu: Cu, work: Work
) -> None:
    """Although it has the same number in all of them."""
    pool = make(cap="8MiB")
    context = cu.out("cuCtxGetCurrent")

    def use(value: int) -> None:
        cu.ok("cuCtxSetCurrent", context)
        for _ in range(30):
            with pool.allocate(MIB, PER_THREAD) as buffer:
                work.fill(buffer, value, PER_THREAD)
                assert work.holds(buffer, value, PER_THREAD)

    run_together(partial(use, 1), partial(use, 2))
    check(pool)


def test_cupy_1295_and_dask_cuda_826_headroom_leaves_room_for_other_libraries(
    make: MakeArena, cu: Cu, take: Take
) -> None:
    pool = make(headroom="512MiB")
    taken: list[object] = []
    with pytest.raises(OutOfMemoryError, match="headroom kept"):
        take_all(pool, 256 * MIB, take, taken)
    cu.ok("cuMemFree", cu.alloc(512 * MIB))
    assert len(taken) == 30
    pool.validate()


def test_rmm_724_jax_1222_and_tensorflow_36627_memory_goes_back_before_the_process_ends(
    make: MakeArena, take: Take
) -> None:
    pool = make()
    arrays = [take(pool, 64 * MIB) for _ in range(50)]
    assert sim.used() >= 3200 * MIB
    arrays.clear()
    pool.trim()
    assert sim.used() == 0


def test_pytorch_58466_and_107667_the_cap_bounds_what_is_really_taken_from_the_first_call_on(
    make: MakeArena, take: Take
) -> None:
    pool = make(cap="100MiB")
    taken: list[object] = []
    with pytest.raises(OutOfMemoryError, match="cap reached"):
        take_all(pool, 7 * MIB, take, taken)
    assert len(taken) == 14
    assert sim.peak() == 98 * MIB


def test_theano_nothing_is_reserved_in_advance_unless_requested(make: MakeArena, take: Take) -> None:
    """A requested reservation is visible, and is given back."""
    assert make().stats().reserved == 0 == sim.used()
    pool = make(reserve="1GiB", cap="2GiB")
    assert pool.stats().spare == GIB == sim.used()
    array = take(pool, 2 * GIB)  # the reservation does not get in the way
    assert check(pool).live == 2 * GIB
    pool.set_cap("2GiB")
    del array
    pool.set_cap("512MiB")
    assert check(pool, highest_cap=2 * GIB).reserved <= GIB // 2


def test_aws_2016_a_failed_request_says_why_and_what_to_do(make: MakeArena, take: Take) -> None:
    pool = make(cap="64MiB")
    held = take(pool, 40 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        take(pool, 86_118_400)
    text = str(caught.value)
    assert "82.13 MiB requested, cap reached; the largest request that would pass is 24 MiB" in text
    assert "41,943,040  live data the program requested" in text
    assert "Next: 82.13 MiB can never fit under a cap of 64 MiB, no matter what is freed: raise the cap" in text
    assert held is not None
