"""Scopes: what one part of a program allocates, and its budget."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest

from arena import OutOfMemoryError, UsageError

from ..programs import ROOT
from .conftest import MIB, MakeArena, check


def test_a_scope_knows_its_peak_and_what_outlived_it(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    before = pool.allocate(MIB)
    with pool.scope("load") as scope:
        kept = pool.allocate(MIB)
        pool.allocate(3 * MIB).free()
        before.free()  # none of its own
        assert (scope.live, scope.peak, scope.leaked, scope.blocks) == (MIB, 4 * MIB, 0, 1)
    assert scope.leaked == MIB
    pool.allocate(5 * MIB).free()
    assert scope.peak == 4 * MIB
    kept.free()
    assert (scope.leaked, scope.name) == (0, "load")
    check(pool)


def test_a_scope_counts_cached_blocks(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    for _ in range(2):  # a size that recurs
        buffers = [pool.allocate(1000) for _ in range(4)]
        while buffers:
            buffers.pop().free()
    with pool.scope("small", budget=3072) as scope:
        kept = [pool.allocate(1000) for _ in range(3)]
        assert (scope.live, scope.blocks) == (3072, 3)
        with pytest.raises(OutOfMemoryError, match="budget of scope small reached"):
            pool.allocate(1000)
    kept.clear()
    assert (scope.live, scope.peak, check(pool).live) == (0, 3072, 0)


def test_a_scope_lists_what_outlived_it(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    with pool.scope("epoch"):
        other = pool.allocate(5000)  # belongs to another scope with the same name
    scope = pool.scope("epoch")
    assert scope.outlived().pieces == []
    with scope:
        kept = [pool.allocate(1000)]
        with pool.scope("inner"):
            kept.append(pool.allocate(2000))
            pool.allocate(3000).free()
    outside = pool.allocate(4000)
    assert [piece.requested for piece in scope.outlived().pieces] == [1000, 2000]
    assert scope.outlived().bytes == scope.leaked == 3072
    kept.clear()
    assert str(scope.outlived()) == "nothing allocated in between is still live"
    assert (other.nbytes, outside.nbytes) == (5000, 4000)


def test_a_budget_bounds_a_scope_and_its_inner_scopes(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    with pool.scope("outer", budget="8MiB") as outer:
        kept = pool.allocate(4 * MIB)
        with pool.scope("inner", budget="50%") as inner:
            assert inner.budget == 4096 * MIB
            with pytest.raises(OutOfMemoryError, match="raise budget= of scope outer from 8 MiB to 9 MiB") as caught:
                pool.allocate(5 * MIB)
            assert (caught.value.verdict, caught.value.largest) == ("budget of scope outer reached", 4 * MIB)
            inside = pool.allocate(4 * MIB)
        assert (inner.leaked, outer.live) == (4 * MIB, 8 * MIB)
        inside.free()
        assert (inner.leaked, outer.live) == (0, 4 * MIB)
    outside = pool.allocate(30 * MIB)
    assert (kept.nbytes, outside.nbytes, outer.peak) == (4 * MIB, 30 * MIB, 8 * MIB)


def test_a_budget_error_names_the_budget_and_lists_what_its_scope_holds(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    with pool.scope("load", budget="10MiB"):  # an earlier scope with the same name
        earlier = pool.allocate(4 * MIB)
    outside = pool.allocate(16 * MIB)
    with pool.scope("load", budget="10MiB"):
        own = [pool.allocate(3 * MIB)]
        with pool.scope("read"):
            own.append(pool.allocate(5 * MIB))
        with pytest.raises(OutOfMemoryError) as caught:
            pool.allocate(4 * MIB)
    error = caught.value
    assert (error.verdict, error.scope, error.budget, error.budget_used, error.largest) == (
        "budget of scope load reached", "load", 10 * MIB, 8 * MIB, 2 * MIB,
    )  # fmt: skip
    assert str(error).splitlines() == [
        "out of memory: 4 MiB requested, budget of scope load reached (8 of 10 MiB used); the largest request that "
        "would pass is 2 MiB",
        "Largest holders in scope load (set ARENA_LINES=1 to see source lines):",
        "       5 MiB  in 1 block of 4 MiB and more",
        "       3 MiB  in 1 block of 2 MiB and more",
        "Next: raise budget= of scope load from 10 MiB to 12 MiB or more, or free what it holds first.",
    ]
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    for block in (earlier, outside, *own):
        block.free()


def test_the_document_shows_the_budget_error_as_it_is(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    with pool.scope("preprocess", budget="10MiB"):
        kept = pool.allocate(8 * MIB)
        with pytest.raises(OutOfMemoryError) as caught:
            pool.allocate(4 * MIB)
    shown = [line[4:] for line in (ROOT / "docs" / "arena.md").read_text().splitlines() if line.startswith("    ")]
    lines = str(caught.value).splitlines()
    begin = shown.index(lines[0])
    assert shown[begin : begin + len(lines)] == lines
    kept.free()


def test_a_request_above_a_budget_can_never_pass_under_it(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    with pool.scope("small", budget="1MiB"), pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(2 * MIB)
    assert str(caught.value).splitlines()[-1] == (
        "Next: 2 MiB can never fit under the budget of scope small (1 MiB), no matter what is freed: raise budget=, or "
        "request less at a time."
    )
    assert caught.value.most == MIB


def test_a_budget_is_checked_before_garbage_is_collected_and_callbacks_are_called(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    with pool.scope("small", budget="1MiB"):
        held = [pool.allocate(MIB)]
        pool.on_oom(lambda error: held.clear())
        assert pool.allocate(MIB).nbytes == MIB


def test_scopes_belong_to_a_thread_and_an_arena(make: MakeArena) -> None:
    pool, other = make(cap="64MiB"), make(cap="64MiB")
    kept = []
    with pool.scope("mine", budget="1MiB") as scope:
        kept.append(other.allocate(2 * MIB))
        thread = threading.Thread(target=lambda: kept.append(pool.allocate(2 * MIB)))
        thread.start()
        thread.join()
        with other.scope("theirs"):
            kept.append(pool.allocate(MIB))
        assert (scope.live, len(kept)) == (MIB, 3)


def test_a_scope_is_entered_once(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    scope = pool.scope("once")
    assert (scope.live, scope.peak, scope.leaked) == (0, 0, 0)
    assert repr(scope) == "<arena.Scope 'once', not entered: 0 B live, 0 B at the peak>"
    with scope, pytest.raises(UsageError, match="scope 'once' was entered before"):
        scope.__enter__()
    for name in ("", 5, None):
        with pytest.raises(UsageError, match="a scope needs a printable name"):
            pool.scope(name)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="budget='x' is not a size"):
        pool.scope("x", budget="x")


def test_a_scope_cannot_be_copied(make: MakeArena) -> None:
    pool = make(cap="8MiB")
    with pool.scope("load", budget="1MiB") as scope:
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="neither copied nor pickled"):
                duplicate(scope)
        with pytest.raises(OutOfMemoryError, match="budget of scope load reached"):
            pool.allocate(2 * MIB)


def test_many_scopes_leave_nothing_behind(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    for turn in range(2000):
        with pool.scope(f"turn {turn}"):
            pool.allocate(1000).free()
    assert {piece.scope for piece in pool.snapshot().pieces} == {""}


def test_a_scope_that_ends_in_another_thread_or_is_dropped_no_longer_bounds_anything(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    wandering = pool.scope("wandering", budget=1024)
    wandering.__enter__()
    thread = threading.Thread(target=wandering.__exit__)
    thread.start()
    thread.join()
    pool.allocate(MIB).free()
    pool.scope("forgotten", budget=1024).__enter__()
    pool.allocate(MIB).free()
    assert wandering.peak == 0


def test_the_largest_request_is_what_all_budgets_leave(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    with pool.scope("outer", budget=1500), pool.scope("inner", budget=4096):
        with pytest.raises(OutOfMemoryError) as caught:
            pool.allocate(8000)
        assert (caught.value.verdict, caught.value.largest) == ("budget of scope inner reached", 1024)
        pool.allocate(1024).free()
