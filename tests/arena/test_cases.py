"""Cases from the field, each by the name under which people reported it."""

from __future__ import annotations

import threading

import pytest

from arena import Arena, Buffer, OutOfMemoryError, sim

from ..simulated.cu import PER_THREAD, Cu
from .conftest import GIB, MIB, MakeArena, Work, check


def take_all(pool: Arena, size: int, taken: list[Buffer]) -> None:
    while True:
        taken.append(pool.allocate(size))
        assert sim.used() <= pool.stats().cap


def test_httomo_667(make: MakeArena) -> None:
    """A: a result of 1 GiB and a temporary of 4 GiB; B: a result of 1 GiB; A again. On 8 GiB."""
    pool = make()

    def a() -> object:
        result, temporary = pool.allocate(GIB), pool.allocate(4 * GIB)
        temporary.free()
        return result

    results = [a(), pool.allocate(GIB), a()]
    assert len(results) == 3
    assert check(pool).live == 3 * GIB


def test_cupy_7678(make: MakeArena) -> None:
    """Limit 1 GiB: take 512 MiB, free it, take 768 MiB."""
    pool = make(cap="1GiB")
    pool.allocate(512 * MIB).free()
    buffer = pool.allocate(768 * MIB)
    assert check(pool).peak_reserved <= GIB
    assert buffer.nbytes == 768 * MIB


def test_cupy_1256(make: MakeArena) -> None:
    """Take 30 % twice, free the second, ask for 60 %."""
    pool = make()
    first, second = (pool.allocate(8 * GIB * 3 // 10) for _ in range(2))
    second.free()
    third = pool.allocate(8 * GIB * 6 // 10)
    assert check(pool).live >= first.nbytes + third.nbytes


def test_cupy_536(make: MakeArena) -> None:
    """2.3 GB free in pieces, 1 GB asked."""
    pool = make(cap="4GiB")
    pieces = [pool.allocate(100 * MIB) for _ in range(40)]
    for piece in pieces[::2]:
        piece.free()
    assert pool.stats().reserved - pool.stats().live >= 1900 * MIB
    assert pool.allocate(1000 * MIB).nbytes == 1000 * MIB
    check(pool)


def test_pytorch_35901(make: MakeArena) -> None:
    """One small block holds a large piece of memory back: all but its own handle is given back."""
    pool = make()
    large = pool.allocate(6 * GIB)
    small = pool.allocate(4096)
    large.free()
    pool.trim()
    assert check(pool).reserved <= 64 * MIB
    assert small.nbytes == 4096


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


def test_cupy_1295_and_dask_cuda_826(make: MakeArena, cu: Cu) -> None:
    """Libraries need room outside the pool."""
    pool = make(headroom="512MiB")
    taken: list[Buffer] = []
    with pytest.raises(OutOfMemoryError, match="headroom kept"):
        take_all(pool, 256 * MIB, taken)
    cu.ok("cuMemFree", cu.alloc(512 * MIB))
    assert len(taken) == 30
    pool.validate()


def test_rmm_724_and_jax_1222_and_tensorflow_36627(make: MakeArena) -> None:
    """Memory goes back to the device without the process having to end."""
    pool = make()
    buffers = [pool.allocate(64 * MIB) for _ in range(50)]
    assert sim.used() >= 3200 * MIB
    buffers.clear()
    pool.trim()
    assert sim.used() == 0


def test_pytorch_58466_and_107667(make: MakeArena) -> None:
    """The limit bounds what is really taken, from the first call on."""
    pool = make(cap="100MiB")
    taken: list[Buffer] = []
    with pytest.raises(OutOfMemoryError, match="cap reached"):
        take_all(pool, 7 * MIB, taken)
    assert len(taken) == 14
    assert sim.peak() == 98 * MIB


def test_theano(make: MakeArena) -> None:
    """Nothing is reserved before it is needed, unless that was asked for; and then it is visible."""
    assert make().stats().reserved == 0 == sim.used()
    assert make(reserve="1GiB").stats().spare == GIB == sim.used()


def test_aws_2016(make: MakeArena) -> None:
    """A request that fails says why and what to do."""
    pool = make(cap="64MiB")
    held = pool.allocate(40 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(86_118_400)
    text = str(caught.value)
    assert "82.13 MiB asked, cap reached; the largest request that would pass is 24 MiB" in text
    assert "41,943,040  what the program asked for" in text
    assert "Next: raise the cap with set_cap(), or free something first." in text
    assert held.nbytes == 40 * MIB
