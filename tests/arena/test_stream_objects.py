"""Streams passed as objects: a hit runs no Python, and objects with the same number are never confused."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from arena import UsageError, _core, sim

from ..simulated.cu import Cu, OwnedStream
from ..threads import run_together
from .conftest import MIB, MakeArena, Work, check

SLOW = 20_000  # microseconds per operation


class WithPtr:
    def __init__(self, owned: OwnedStream) -> None:
        self.owned, self.ptr = owned, owned.ptr


class WithHandle:
    ptr = None

    def __init__(self, owned: OwnedStream) -> None:
        self.owned, self.handle = owned, ctypes.c_void_p(owned.ptr)


class WithSlots:
    __slots__ = ("handle", "owned")

    def __init__(self, owned: OwnedStream) -> None:
        self.owned, self.handle = owned, owned.ptr


class Number:
    """An object that has the number of a stream it does not own."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.number


KINDS: dict[str, Callable[[OwnedStream], Any]] = {
    "__cuda_stream__": lambda owned: owned,
    ".ptr": WithPtr,
    ".handle of ctypes": WithHandle,
    ".handle in a slot": WithSlots,
}


class SlowRequests:
    """Counts the requests that the quick path could not serve, from now on."""

    def __init__(self) -> None:
        self._before = _core.slow_requests()

    def count(self) -> int:
        return _core.slow_requests() - self._before


@pytest.mark.parametrize("kind", KINDS)
def test_a_hit_on_the_object_of_a_known_stream_takes_no_python(make: MakeArena, cu: Cu, kind: str) -> None:
    pool, stream = make(cap="64MiB"), KINDS[kind](cu.owned_stream())
    pool.allocate(4096, stream).free()
    slow = SlowRequests()
    for size in (4096, 4096, 8192, MIB):  # kept by its stream, and in a gap
        pool.allocate(size, stream).free()
        pool.allocate(size, stream=stream).free()
    assert slow.count() == 0
    pool.allocate(63 * MIB, stream).free()  # a miss
    assert slow.count() == 1
    check(pool)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_hit_on_the_object_of_a_default_stream_takes_no_python(make: MakeArena, number: int) -> None:
    pool, stream = make(cap="64MiB"), Number(number)
    pool.allocate(4096, stream).free()
    slow = SlowRequests()
    for _ in range(3):
        pool.allocate(4096, stream).free()
    assert slow.count() == 0
    with pytest.raises(UsageError, match="not a stream"):
        pool.allocate(4096, None)


def test_another_object_with_the_same_number_is_not_taken_for_the_one_that_is_kept(make: MakeArena, cu: Cu) -> None:
    pool, stream = make(cap="64MiB"), cu.owned_stream()
    pool.allocate(4096, stream).free()
    slow = SlowRequests()
    pool.allocate(4096, Number(stream.ptr)).free()
    assert slow.count() == 1
    pool.allocate(4096, stream).free()
    assert slow.count() == 1


def test_an_object_that_was_let_go_is_kept_again_when_it_comes_back(make: MakeArena, cu: Cu) -> None:
    pool, stream = make(cap="64MiB"), cu.owned_stream()
    known = weakref.ref(stream)
    pool.allocate(4096, stream).free()
    pool.trim()
    slow = SlowRequests()
    buffer = pool.allocate(4096, stream)
    assert slow.count() == 1
    del stream
    assert known() is not None
    buffer.free()
    pool.trim()
    assert known() is None


def test_a_new_object_with_the_number_of_an_old_one_waits_for_it(make: MakeArena, cu: Cu, work: Work) -> None:
    sim.configure(reuse=True)
    pool = make(cap="4MiB")
    for _ in range(3):  # a hit the second time, since the stream is known by then
        stream = cu.owned_stream()
        with sim.temporarily(delay=SLOW):
            for value in (1, 2):
                with pool.allocate(4 * MIB, stream) as buffer:
                    work.fill(buffer, value, stream.ptr)
        other = cu.owned_stream()
        with pool.allocate(4 * MIB, other) as buffer:
            work.fill(buffer, 3, other.ptr)
            del stream
            assert work.holds(buffer, 3, other.ptr)
        del other
        pool.trim()
    check(pool)


def test_an_object_may_allocate_while_it_is_asked_for_its_number(make: MakeArena, cu: Cu) -> None:
    class Busy(OwnedStream):
        def __cuda_stream__(self) -> tuple[int, int]:
            pool.allocate(4096, self.ptr).free()
            pool.trim()  # releases streams that are not in use, including this one
            return 0, self.ptr

    pool, stream = make(cap="64MiB"), Busy(cu)
    for _ in range(5):
        pool.allocate(4096, stream).free()
    check(pool)


def test_an_object_may_close_the_arena_while_it_is_asked_for_its_number(make: MakeArena, cu: Cu) -> None:
    class Closing(OwnedStream):
        def __cuda_stream__(self) -> tuple[int, int]:
            pool.close()
            return 0, self.ptr

    pool = make(cap="64MiB")
    stream = Closing(cu)
    with pytest.raises(UsageError, match="closed"):
        pool.allocate(4096, stream)


def test_an_exception_in_a_stream_object_is_passed_on(make: MakeArena, cu: Cu) -> None:
    class Raising:
        def __init__(self, error: BaseException) -> None:
            self.error, self.calls = error, 0

        def __cuda_stream__(self) -> tuple[int, int]:
            self.calls += 1
            raise self.error

    class RaisingProperty:
        @property
        def ptr(self) -> int:
            raise KeyError("ptr")

    pool = make(cap="64MiB")
    for error in (KeyError("no"), AttributeError("no"), KeyboardInterrupt()):
        stream = Raising(error)
        with pytest.raises(type(error)) as raised:
            pool.allocate(4096, stream)
        assert raised.value is error
        assert stream.calls == 1
    with pytest.raises(KeyError):
        pool.allocate(4096, RaisingProperty())
    check(pool)


@pytest.mark.parametrize("answer", [(0, -1), (0, 1 << 64), (0, True), (0, "1"), (0,), 7, None, (0, 1.0)], ids=repr)
def test_an_object_with_an_invalid_number_is_refused(make: MakeArena, answer: Any) -> None:
    class Odd:
        def __cuda_stream__(self) -> Any:
            return answer

    class OddHandle:
        handle = answer[1] if isinstance(answer, tuple) and len(answer) == 2 else answer

    pool = make(cap="64MiB")
    with pytest.raises(UsageError, match="not a stream"):
        pool.allocate(4096, Odd())
    if OddHandle.handle not in (7, None, 1):
        with pytest.raises(UsageError, match="not a stream"):
            pool.allocate(4096, OddHandle())


@pytest.mark.timeout(60)
def test_threads_with_stream_objects_keep_their_bytes_while_streams_are_released(
    make: MakeArena, cu: Cu, work: Work
) -> None:
    pool = make(cap="256MiB")
    context = cu.out("cuCtxGetCurrent")
    shared = cu.owned_stream()

    def use(value: int) -> None:
        cu.ok("cuCtxSetCurrent", context)
        for turn in range(60):
            stream = shared if turn % 2 else cu.owned_stream()
            for _ in range(3):
                with pool.allocate(4096, stream) as buffer:
                    work.fill(buffer, value, stream.ptr)
                    assert work.holds(buffer, value, stream.ptr)

    def let_go() -> None:
        cu.ok("cuCtxSetCurrent", context)
        for _ in range(60):
            pool.trim()

    run_together(*(lambda value=value: use(value) for value in range(3)), let_go)
    stats = check(pool)
    assert (stats.blocks, stats.allocations) == (0, 3 * 60 * 3)
