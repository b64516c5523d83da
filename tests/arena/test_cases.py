"""Cases from the field, each by the name under which people reported it.

Those that need no stream run twice: with arrays of real CuPy, and with buffers of the arena's own. (CuPy without a GPU
has no other stream than the default one.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import cupy
import pytest

from arena import Arena, OutOfMemoryError, sim

from ..simulated.cu import PER_THREAD, Cu
from .conftest import GIB, MIB, MakeArena, Work, check

Take = Callable[[Arena, int], object]  # what it returns is freed when it is dropped


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


def test_httomo_667(make: MakeArena, take: Take) -> None:
    """A: a result of 1 GiB and a temporary of 4 GiB; B: a result of 1 GiB; A again. On 8 GiB."""
    pool = make()

    def a() -> object:
        result, temporary = take(pool, GIB), take(pool, 4 * GIB)
        assert temporary is not None
        return result

    results = [a(), take(pool, GIB), a()]
    assert len(results) == 3
    assert check(pool).live == 3 * GIB


def test_cupy_7678(make: MakeArena, take: Take) -> None:
    """Limit 1 GiB: take 512 MiB, free it, take 768 MiB."""
    pool = make(cap="1GiB")
    take(pool, 512 * MIB)
    array = take(pool, 768 * MIB)
    assert check(pool).peak_reserved <= GIB
    assert array is not None
    assert pool.stats().live == 768 * MIB


def test_cupy_1256(make: MakeArena, take: Take) -> None:
    """Take 30 % twice, free the second, ask for 60 %."""
    pool = make()
    arrays = [take(pool, 8 * GIB * 3 // 10) for _ in range(2)]
    del arrays[1]
    arrays.append(take(pool, 8 * GIB * 6 // 10))
    assert check(pool).requested == 8 * GIB * 3 // 10 + 8 * GIB * 6 // 10


def test_cupy_536(make: MakeArena, take: Take) -> None:
    """2.3 GB free in pieces, 1 GB asked."""
    pool = make(cap="4GiB")
    pieces = [take(pool, 100 * MIB) for _ in range(40)]
    del pieces[::2]
    assert pool.stats().reserved - pool.stats().live >= 1900 * MIB
    pieces.append(take(pool, 1000 * MIB))
    assert check(pool).live == 3000 * MIB


def test_pytorch_35901(make: MakeArena, take: Take) -> None:
    """One small block holds a large piece of memory back: all but its own handle is given back."""
    pool = make()
    large = take(pool, 6 * GIB)
    small = take(pool, 4096)
    del large
    pool.trim()
    assert check(pool).reserved <= 64 * MIB
    pool.trim(compact=True)
    assert check(pool).reserved == 2 * MIB
    assert small is not None


def test_rmm_2039_and_orion_5(make: MakeArena, cu: Cu, work: Work) -> None:
    """Two streams take turns with most of the memory."""
    pool = make(cap="64MiB")
    streams = [cu.stream(), cu.stream()]
    for turn in range(6):
        stream = streams[turn % 2]
        with pool.allocate(48 * MIB, stream) as buffer:
            work.fill(buffer, turn + 1, stream)
            if turn == 5:
                assert work.holds(buffer, 6, stream)
    check(pool)


def test_cupy_8068(make: MakeArena, cu: Cu, work: Work) -> None:
    """An array is used on another stream than its own, then dropped; a stream is destroyed with memory freed on it."""
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


def test_cupy_5069(make: MakeArena, cu: Cu, work: Work) -> None:
    """The per-thread default stream has one number and is another stream in each thread."""
    pool = make(cap="8MiB")
    context = cu.out("cuCtxGetCurrent")
    wrong: list[object] = []

    def use(value: int) -> None:
        try:
            cu.ok("cuCtxSetCurrent", context)
            for _ in range(30):
                with pool.allocate(MIB, PER_THREAD) as buffer:
                    work.fill(buffer, value, PER_THREAD)
                    if not work.holds(buffer, value, PER_THREAD):
                        wrong.append(value)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=use, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    check(pool)


def test_cupy_1295_and_dask_cuda_826(make: MakeArena, cu: Cu, take: Take) -> None:
    """Libraries need room outside the pool."""
    pool = make(headroom="512MiB")
    taken: list[object] = []
    with pytest.raises(OutOfMemoryError, match="headroom kept"):
        take_all(pool, 256 * MIB, take, taken)
    cu.ok("cuMemFree", cu.alloc(512 * MIB))
    assert len(taken) == 30
    pool.validate()


def test_rmm_724_and_jax_1222_and_tensorflow_36627(make: MakeArena, take: Take) -> None:
    """Memory goes back to the device without the process having to end."""
    pool = make()
    arrays = [take(pool, 64 * MIB) for _ in range(50)]
    assert sim.used() >= 3200 * MIB
    arrays.clear()
    pool.trim()
    assert sim.used() == 0


def test_pytorch_58466_and_107667(make: MakeArena, take: Take) -> None:
    """The limit bounds what is really taken, from the first call on."""
    pool = make(cap="100MiB")
    taken: list[object] = []
    with pytest.raises(OutOfMemoryError, match="cap reached"):
        take_all(pool, 7 * MIB, take, taken)
    assert len(taken) == 14
    assert sim.peak() == 98 * MIB


def test_theano(make: MakeArena, take: Take) -> None:
    """Nothing is reserved before it is needed, unless that was asked for; then it is visible, and given back."""
    assert make().stats().reserved == 0 == sim.used()
    pool = make(reserve="1GiB", cap="2GiB")
    assert pool.stats().spare == GIB == sim.used()
    array = take(pool, 2 * GIB)  # the reservation does not stand in the way
    assert check(pool).live == 2 * GIB
    pool.set_cap("2GiB")
    del array
    pool.set_cap("512MiB")
    assert check(pool, highest_cap=2 * GIB).reserved <= GIB // 2


def test_aws_2016(make: MakeArena, take: Take) -> None:
    """A request that fails says why and what to do."""
    pool = make(cap="64MiB")
    held = take(pool, 40 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        take(pool, 86_118_400)
    text = str(caught.value)
    assert "82.13 MiB requested, cap reached; the largest request that would pass is 24 MiB" in text
    assert "41,943,040  what the program asked for" in text
    assert "Next: 82.13 MiB can never pass under a cap of 64 MiB, whatever is freed: raise the cap" in text
    assert held is not None
