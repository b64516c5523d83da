"""The slow path: a miss is one call into the core, and a failed request builds one error."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import cupy
import pytest

import arena
from arena import OutOfMemoryError, UsageError, _core

from ..simulated.cu import Cu
from .conftest import MIB, MakeArena, check


def calls_of(function: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return a function's result, and the calls it made: from Python into C, and of Python functions."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            calls.append(argument.__name__)
        elif event == "call":
            calls.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        made = function()
    finally:
        sys.setprofile(None)
    own = calls.index("setprofile")
    return made, calls[1:own]  # the first is the function itself


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """The class of each OutOfMemoryError that is built from now on."""
    classes: list[type] = []

    def note(self: OutOfMemoryError, name: str, value: Any) -> None:
        if name == "verdict":  # set once for each, in Python and in the core
            classes.append(type(self))
        MemoryError.__setattr__(self, name, value)

    monkeypatch.setattr(OutOfMemoryError, "__setattr__", note, raising=False)
    return classes


def test_a_miss_is_one_call_into_the_core_and_runs_no_python(make: MakeArena, cu: Cu) -> None:
    pool, stream, known = make(cap="64MiB", growth="2MiB"), cu.owned_stream(), cu.owned_stream()
    pool.allocate(512, known).free()
    for arguments in ((2 * MIB,), (2 * MIB, 0), (2 * MIB, stream.ptr)):
        misses = pool.stats().allocations - pool.stats().hits
        buffer, calls = calls_of(lambda arguments=arguments: pool.allocate(*arguments))
        assert calls == ["allocate"]
        assert pool.stats().allocations - pool.stats().hits == misses + 1
        buffer.free()
        pool.trim()
    buffer, calls = calls_of(lambda: pool.allocate(4 * MIB, known))  # an object is asked for its number once
    assert calls == ["allocate", "__cuda_stream__"]
    buffer.free()
    check(pool)


@pytest.mark.parametrize("compact", ["auto", True, False])
def test_a_miss_of_cupy_is_one_call_into_the_core_and_runs_no_python(make: MakeArena, compact: bool | str) -> None:
    pool = make(cap="64MiB", growth="2MiB", compact=compact)
    pool.malloc(512)  # connects CuPy
    slow = _core.slow_requests()
    pointer, calls = calls_of(lambda: pool.malloc(8 * MIB))
    assert (calls, _core.slow_requests()) == (["malloc"], slow + 1)
    assert (type(pointer), pointer.mem.size) == (cupy.cuda.MemoryPointer, 8 * MIB)
    del pointer
    assert check(pool).live == 0


@pytest.mark.usefixtures("make")  # an initialised driver, and everything returned at the end
def test_a_miss_of_the_default_arena_is_one_call_too() -> None:
    with arena.default_arena():
        arena.malloc(512)
        pointer, calls = calls_of(lambda: arena.malloc(80 * MIB))
        assert calls == ["malloc"]
        del pointer


def test_a_watched_miss_runs_python_only_when_a_function_for_pressure_is_due(make: MakeArena) -> None:
    pool, fired = make(cap="64MiB", growth="2MiB"), []
    for of in ("reserved", "live"):
        pool.on_pressure(0.5, lambda of=of: fired.append(of), of=of, rearm=0.25)
    for due in (False, True, False):
        buffer, calls = calls_of(lambda due=due: pool.allocate((40 if due else 2) * MIB))
        assert (calls == ["allocate"]) is not due
        assert ("_fire_pressure" in calls) is due
        assert fired == (["reserved", "live"] if due else [])
        fired.clear()
        buffer.free()
        pool.trim()


@pytest.mark.parametrize("size", [65 * MIB, 1 << 62, 1 << 63, 1 << 64, 1 << 200])
def test_a_failed_request_builds_one_error_with_the_size_that_was_requested(
    make: MakeArena, built: list[type], size: int
) -> None:
    pool = make(cap="64MiB")
    kept = pool.allocate(MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(size)
    error = caught.value
    assert built == [OutOfMemoryError]
    assert (error.requested, error.args[2], error.largest) == (size, size, 63 * MIB)
    assert str(error).startswith("out of memory: 65 MiB requested" if size == 65 * MIB else "out of memory: ")
    if size >= 1 << 63:
        assert str(error).startswith(f"out of memory: {size:,} bytes requested, cap reached; ")
    assert (error.__context__, error.__cause__) == (None, None)
    assert error.holders[-1].endswith("1 MiB  in 1 block of 1 MiB and more")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (str(other), vars(other)) == (str(error), vars(error))
    kept.free()


def test_each_function_for_out_of_memory_gets_an_error_and_the_request_builds_one_more(
    make: MakeArena, built: list[type]
) -> None:
    pool = make(cap="64MiB")
    seen: list[OutOfMemoryError] = []
    for _ in range(2):
        pool.on_oom(seen.append)
    with pytest.raises(OutOfMemoryError):
        pool.allocate(1 << 70)
    assert built == [OutOfMemoryError] * 3
    assert [(error.requested, error.verdict, error.moving) for error in seen] == [
        (1 << 70, "cap reached", "allowed")
    ] * 2


def test_a_failed_request_of_cupy_builds_one_error_of_cupys_kind(make: MakeArena, built: list[type]) -> None:
    pool = make(cap="64MiB")
    pool.malloc(512)
    for size in (65 * MIB, 1 << 70):
        built.clear()
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError) as caught:
            pool.malloc(size)
        assert built == [type(caught.value)]
        assert isinstance(caught.value, OutOfMemoryError)
        assert caught.value.requested == size
        again = pickle.loads(pickle.dumps(caught.value))
        assert (type(again), str(again)) == (OutOfMemoryError, str(caught.value))  # readable without CuPy


def test_a_reservation_that_fails_builds_one_error(make: MakeArena, built: list[type]) -> None:
    pool = make(cap="64MiB")
    with pytest.raises(OutOfMemoryError):
        pool.reserve("80MiB")
    assert built == [OutOfMemoryError]


def test_the_error_of_a_saved_report_says_where_it_is_after_pickling_too(
    make: MakeArena, built: list[type], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARENA_OOM_DIR", str(tmp_path))
    monkeypatch.setattr("arena._pool.oom._numbers", [1])
    pool = make(cap="64MiB")
    pool.malloc(512)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.malloc(65 * MIB)
    assert len(built) == 1
    (page,) = tmp_path.glob("*.html")
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert error.holders[-1] == f"Full report: {page}"


def test_an_interrupt_while_room_is_made_leaves_no_memory_behind(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    kept = [pool.allocate(60 * MIB)]

    def interrupt(error: OutOfMemoryError) -> None:
        kept.clear()
        raise KeyboardInterrupt

    pool.on_oom(interrupt)
    with pytest.raises(KeyboardInterrupt):
        pool.allocate(8 * MIB)
    assert check(pool).live == 0
    pool.allocate(8 * MIB).free()


def test_a_request_of_a_closed_arena_says_so(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    pool.close()
    for size in (MIB, 1 << 70, "1MiB"):
        with pytest.raises(UsageError, match="the arena is closed: make another one"):
            pool.allocate(size)


def test_wrong_arguments_are_errors_of_python(make: MakeArena) -> None:
    pool: Any = make(cap="64MiB")
    for arguments, names in [
        ((), {}),
        ((1, 2, 3), {}),
        ((1,), {"streem": 0}),
        ((), {"stream": 0}),
        ((1, 0), {"stream": 0}),
    ]:
        with pytest.raises(TypeError):
            pool.allocate(*arguments, **names)
    for size, kind in [(-1, UsageError), (1.5, TypeError), (None, TypeError), (True, TypeError), ("x", UsageError)]:
        with pytest.raises(kind):
            pool.allocate(size)
    pool.allocate(size=512, stream=0).free()
    check(pool)
