"""A request that fails near the recursion limit still raises OutOfMemoryError, with less detail if necessary."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import pytest

import arena

from .conftest import GIB, MIB, MakeArena

DEPTH = 400  # more than pytest and what it calls use, with frames to spare for the last of them


def near_the_limit(left: int, function: Callable[[], Any]) -> Any:
    """Call a function with that many frames left below the limit."""

    def deeper(frames: int) -> Any:
        return function() if frames <= left else deeper(frames - 1)

    before = sys.getrecursionlimit()
    depth = 0
    frame = sys._getframe()
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    sys.setrecursionlimit(depth + DEPTH)
    try:
        return deeper(DEPTH - 3)
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.parametrize("calls", [False, True], ids=["alone", "with a callback"])
def test_a_failed_request_is_out_of_memory_at_every_depth_at_which_it_can_be_made(make: MakeArena, calls: bool) -> None:
    pool = make(cap="64MiB")
    kept = pool.allocate(8 * MIB)
    if calls:
        pool.on_oom(lambda error: None)
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            pool.allocate(GIB)
        except (MemoryError, RuntimeError) as error:
            raised.append(error)

    for left in range(60):
        with contextlib.suppress(RecursionError):  # where not even this function can be called
            near_the_limit(left, ask)
    too_deep = [error for error in raised if not isinstance(error, arena.OutOfMemoryError)]
    failed = [error for error in raised if isinstance(error, arena.OutOfMemoryError)]
    assert len(failed) > 30
    assert {(error.verdict, error.requested, error.account["requested"]) for error in failed} == {
        ("cap reached", GIB, 8 * MIB)
    }
    # Here the first functions of arena, which check size and stream, cannot be called: no request was made.
    assert {type(error) for error in too_deep} <= {RecursionError}
    assert raised[: len(too_deep)] == too_deep
    assert len(too_deep) <= 6
    raised.clear()
    kept.free()


def test_with_frames_to_spare_the_error_says_who_holds_the_memory(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    kept = pool.allocate(8 * MIB)
    with pytest.raises(arena.OutOfMemoryError) as caught:
        near_the_limit(200, lambda: pool.allocate(GIB))
    assert caught.value.holders
    assert kept.nbytes == 8 * MIB
