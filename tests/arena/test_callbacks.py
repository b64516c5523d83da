"""Callbacks: what a program can do when memory is about to run out, and when it has."""

from __future__ import annotations

import contextlib
import gc
import re
from pathlib import Path
from typing import Any

import pytest

import arena
from arena import OutOfMemoryError, UsageError

from ..programs import run
from .conftest import MIB, MakeArena, check


def test_a_callback_can_make_room_for_a_request_that_would_fail(make: MakeArena) -> None:
    pool = make(cap="16MiB")
    cache = [pool.allocate(12 * MIB)]
    seen: list[OutOfMemoryError] = []

    def evict(error: OutOfMemoryError) -> None:
        seen.append(error)
        cache.clear()

    pool.on_oom(evict)
    assert pool.allocate(8 * MIB).nbytes == 8 * MIB
    assert (len(seen), seen[0].requested) == (1, 8 * MIB)
    check(pool)


def test_callbacks_are_called_in_order_until_there_is_room(make: MakeArena) -> None:
    pool = make(cap="16MiB")
    held = [pool.allocate(6 * MIB), pool.allocate(6 * MIB)]
    called = []
    for name in ("first", "second", "third"):
        pool.on_oom(lambda error, name=name: (called.append(name), held and held.pop().free()))
    pool.allocate(14 * MIB).free()
    assert called == ["first", "second"]


def test_a_failed_request_counts_once_and_one_that_passes_in_the_end_does_not(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="16MiB")
    held = [pool.allocate(12 * MIB)]
    with pool.record(tmp_path / "run.arena"):
        with pytest.raises(OutOfMemoryError):
            pool.allocate(8 * MIB)  # tried at once, and again after a garbage collection
        assert pool.stats().failures == 1
        pool.on_oom(lambda error: None)
        pool.on_oom(lambda error: held and held.clear())
        pool.allocate(8 * MIB).free()  # after the second callback
        assert pool.stats().failures == 1
        with pytest.raises(OutOfMemoryError):
            pool.allocate(20 * MIB)  # tried four times
        with pool.scope("small", budget=MIB), pytest.raises(OutOfMemoryError):
            pool.allocate(2 * MIB)
        assert pool.stats().failures == 3
    trace = arena.Trace.read(tmp_path / "run.arena")
    assert [event.size for event in trace if event.kind == "failure"] == [8 * MIB, 20 * MIB, 2 * MIB]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_in_a_callback_is_printed_and_changes_nothing(
    make: MakeArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda what: shown.append(what.exc_value))
    pool = make(cap="16MiB")
    held = [pool.allocate(12 * MIB)]
    pool.on_oom(lambda error: 1 / 0)
    with pytest.raises(OutOfMemoryError, match="cap reached"):
        pool.allocate(8 * MIB)
    assert [type(error) for error in shown] == [ZeroDivisionError]
    pool.on_oom(lambda error: held.clear())
    pool.allocate(8 * MIB).free()
    check(pool)
    shown.clear()  # a traceback keeps its locals alive


def test_pressure_fires_once_when_the_share_is_first_exceeded(make: MakeArena) -> None:
    pool = make(cap="32MiB", growth="2MiB")
    fired: list[int] = []
    pool.on_pressure(0.5, lambda: fired.append(pool.stats().reserved))
    held: list[arena.Buffer] = []
    for _ in range(8):
        held.append(pool.allocate(2 * MIB))
    assert fired == []
    held += [pool.allocate(2 * MIB) for _ in range(4)]
    assert fired == [18 * MIB]


def test_pressure_can_watch_live_memory(make: MakeArena) -> None:
    pool = make(cap="32MiB", growth="2MiB")
    fired: list[int] = []
    pool.on_pressure(0.5, lambda: fired.append(pool.stats().live), of="live")
    pool.allocate(14 * MIB).free()
    pool.allocate(15 * MIB).free()  # `reserved` stays
    held = [pool.allocate(4 * MIB) for _ in range(4)]
    assert (pool.stats().reserved >= 16 * MIB, fired) == (True, [])
    held.append(pool.allocate(512))  # from memory that is already reserved
    held.append(pool.allocate(4 * MIB))
    assert fired == [16 * MIB + 512]


def test_pressure_fires_again_only_after_usage_was_below_the_lower_mark(make: MakeArena) -> None:
    pool = make(cap="32MiB", growth="2MiB")
    fired: list[int] = []
    pool.on_pressure(0.75, lambda: fired.append(pool.stats().live >> 20), of="live", rearm=0.5)
    held = [pool.allocate(2 * MIB) for _ in range(13)]
    assert fired == [26]
    for _ in range(3):  # down to 18 MiB and up again: never below 16
        del held[9:]
        held += [pool.allocate(2 * MIB) for _ in range(4)]
    assert fired == [26]
    del held[7:]  # 14 MiB
    held.append(pool.allocate(16 * MIB))  # at once: it has been below the mark
    assert fired == [26, 30]
    held.append(pool.allocate(MIB))
    assert fired == [26, 30]


def test_pressure_of_reserved_memory_fires_again_after_a_trim(make: MakeArena) -> None:
    pool = make(cap="32MiB", growth="2MiB")
    fired: list[int] = []
    pool.on_pressure(0.5, lambda: fired.append(pool.stats().reserved >> 20), rearm=0.25)
    for _ in range(3):
        pool.allocate(20 * MIB).free()
    assert fired == [20]
    pool.trim()
    pool.reserve("18MiB")
    assert fired == [20, 18]


def test_a_callback_that_sheds_load_and_allocates_is_not_called_recursively(make: MakeArena) -> None:
    pool = make(cap="32MiB", growth="2MiB")
    held: list[arena.Buffer] = []
    depths: list[int] = []
    depth = 0

    def shed() -> None:
        nonlocal depth
        depth += 1
        depths.append(depth)
        held.clear()
        pool.allocate(30 * MIB).free()
        depth -= 1

    pool.on_pressure(0.5, shed, of="live", rearm=0.25)
    for _ in range(20):
        held.append(pool.allocate(2 * MIB))
    assert depths == [1, 1]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"of": "free"}, 'of=\'free\' is not accepted; write "reserved" or "live"'),
        ({"rearm": 0.5}, "rearm=0.5 is not accepted; write a share of the cap above 0 and below 0.5"),
        ({"rearm": 0}, "rearm=0 is not accepted"),
        ({"rearm": True}, "rearm=True is not accepted"),
    ],
)
def test_an_invalid_mark_is_named(make: MakeArena, wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        make(cap="16MiB").on_pressure(0.5, print, **wrong)


def test_a_full_cap_and_a_reservation_count_as_pressure_too(make: MakeArena) -> None:
    pool = make(cap="32MiB")
    fired: list[str] = []
    pool.on_pressure(0.5, lambda: fired.append("half"))
    pool.on_pressure(1, lambda: fired.append("full"))
    pool.reserve("20MiB")
    assert fired == ["half"]
    buffer = pool.allocate(32 * MIB)
    assert (fired, buffer.nbytes) == (["half", "full"], 32 * MIB)


@pytest.mark.parametrize("share", [0, -1, 1.5, "half", None])
def test_an_invalid_share_is_named(make: MakeArena, share: object) -> None:
    with pytest.raises(UsageError, match="is not accepted; write a share of the cap"):
        make(cap="16MiB").on_pressure(share, print)  # type: ignore[arg-type]


def test_requests_made_in_a_callback_call_no_callbacks(make: MakeArena) -> None:
    pool = make(cap="16MiB")
    held = pool.allocate(12 * MIB)
    calls: list[str] = []

    def ask(error: OutOfMemoryError) -> None:
        calls.append("called")
        with pytest.raises(OutOfMemoryError):
            pool.allocate(10 * MIB)

    pool.on_oom(ask)
    pool.on_oom(ask)
    with pytest.raises(OutOfMemoryError):
        pool.allocate(8 * MIB)
    assert (calls, held.nbytes) == (["called"] * 2, 12 * MIB)


def test_pressure_callbacks_may_allocate_and_close(make: MakeArena) -> None:
    pool = make(cap="16MiB", growth="2MiB")
    fired: list[str] = []
    pool.on_pressure(0.2, lambda: (fired.append("first"), pool.allocate(4 * MIB).free()))
    pool.on_pressure(0.3, lambda: (fired.append("second"), pool.close()))
    buffer = pool.allocate(6 * MIB)
    assert (sorted(fired), buffer.nbytes) == (["first", "second"], 6 * MIB)
    buffer.free()


def test_a_default_arena_that_was_closed_is_made_again(make: MakeArena) -> None:
    arena.default_arena().close()
    arena.default_arena().allocate(512).free()
    arena.default_arena().close()


def test_an_exception_in_a_callback_is_printed_like_one_in_del() -> None:
    code = """
import arena
pool = arena.Arena(cap="8MiB", device="sim:1GiB")
def fail(*args):
    raise RuntimeError("in a callback")
pool.on_pressure(0.1, fail)
buffer = pool.allocate(4 << 20)
pool.on_oom(fail)
try:
    pool.allocate(8 << 20)
except arena.OutOfMemoryError as error:
    print(error.verdict, buffer.nbytes)
"""
    done = run(code, ARENA_DRIVER="sim")
    assert done.stdout == f"cap reached {4 * MIB}\n"
    assert done.stderr.count("RuntimeError: in a callback") == 2
    assert done.stderr.count("Exception ignored in") == 2


def test_a_failed_request_keeps_no_arrays_alive(make: MakeArena) -> None:
    """The error references the frames it passed through, and their arrays, so it must be dropped once it was caught."""
    pool = make(cap="8MiB")
    pool.on_oom(lambda error: None)

    def work() -> None:
        kept = pool.allocate(4 * MIB)
        pool.allocate(8 * MIB)
        kept.free()

    gc.disable()
    try:
        with contextlib.suppress(arena.OutOfMemoryError):
            work()
        assert pool.stats().blocks == 0
    finally:
        gc.enable()


def test_only_a_callable_can_be_a_callback(make: MakeArena) -> None:
    pool = make(cap="8MiB")
    for register in (pool.on_oom, lambda function: pool.on_pressure(0.5, function)):
        with pytest.raises(UsageError, match="5 cannot be called"):
            register(5)  # type: ignore[arg-type]
