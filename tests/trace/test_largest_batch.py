"""The largest batch that fits is found in few attempts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import cupy
import pytest

from arena import OutOfMemoryError, UsageError, largest_batch

from ..arena.conftest import MIB, MakeArena
from ..programs import run


@pytest.mark.parametrize("seed", range(8))
def test_the_batch_matches_an_exhaustive_search(make: MakeArena, seed: int) -> None:
    choose = random.Random(seed)
    pool = make(cap=f"{choose.randrange(20, 200)}MiB")
    fixed, item = choose.randrange(10 * MIB), choose.randrange(MIB // 4, 3 * MIB)

    def program(batch: int) -> None:
        weights = pool.allocate(fixed)
        activations = [pool.allocate(item) for _ in range(batch)]
        assert weights.nbytes + len(activations) >= 0

    def passes(batch: int) -> bool:
        try:
            program(batch)
        except OutOfMemoryError:
            return False
        return True

    expected = max(batch for batch in range(1, 65) if passes(batch))
    found = largest_batch(program, 1, 64, pool=pool)
    assert found.batch == expected
    assert found.peak >= fixed + expected * item
    assert len(found.tried) <= 9
    assert pool.stats().blocks == 0


def test_cupy_arrays_come_from_the_arena(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    found = largest_batch(lambda batch: cupy.empty((batch, MIB), dtype="u1"), 1, 500, pool=pool)
    assert (found.batch, found.peak) == (64, 64 * MIB)


@pytest.fixture
def give_cupy() -> Iterator[Callable[[Any], None]]:
    """Sets CuPy's allocator until the end of the test."""
    before = cupy.cuda.get_allocator()
    yield cupy.cuda.set_allocator
    cupy.cuda.set_allocator(before)


def test_the_arena_that_cupy_uses_is_tried(make: MakeArena, give_cupy: Callable[[Any], None]) -> None:
    pool, other = make(cap="64MiB"), make(cap="16MiB")
    give_cupy(pool.malloc)
    found = largest_batch(lambda batch: cupy.empty((batch, MIB), dtype="u1"), 1, 500)
    assert (found.batch, found.peak) == (64, 64 * MIB)
    with cupy.cuda.using_allocator(other.malloc):
        assert largest_batch(lambda batch: cupy.empty((batch, MIB), dtype="u1"), 1, 500).batch == 16
    assert cupy.cuda.get_allocator() == pool.malloc


def test_another_cupy_allocator_is_neither_replaced_nor_measured(
    make: MakeArena, give_cupy: Callable[[Any], None]
) -> None:
    theirs = cupy.cuda.MemoryPool()
    give_cupy(theirs.malloc)
    called: list[int] = []
    with pytest.raises(
        UsageError, match=r"allocates from cupy\.cuda\.memory\.MemoryPool, not from an arena, .* as pool="
    ):
        largest_batch(called.append, 1, 8)
    assert called == []
    pool = make(cap="64MiB")
    assert largest_batch(lambda batch: cupy.empty((batch, MIB), dtype="u1"), 1, 500, pool=pool).batch == 64
    assert cupy.cuda.get_allocator() == theirs.malloc


def test_without_cupy_the_open_arena_is_tried() -> None:
    done = run(
        """
import arena
def function(batch):
    return pool.allocate(batch << 20)
pool = arena.Arena(cap="64MiB", device="sim:1GiB")
print(arena.largest_batch(function, 1, 500)[:2])
other = arena.Arena(cap="16MiB", device="sim:1GiB")
try:
    arena.largest_batch(function, 1, 500)
except arena.UsageError as error:
    print(error)
""",
        check=True,
    )
    assert done.stdout.splitlines() == [
        f"(64, {64 * MIB})",
        "2 arenas are open; pass the one that the function uses as pool=",
    ]


def test_all_batches_may_fit_or_none(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    found = largest_batch(lambda batch: pool.allocate(batch), 5, 50, pool=pool)
    assert (found.batch, list(found.tried)) == (50, [5, 50])
    assert largest_batch(lambda batch: pool.allocate(batch), 7, 7, pool=pool).batch == 7
    with pytest.raises(OutOfMemoryError):
        largest_batch(lambda batch: pool.allocate(batch * 65 * MIB), 1, 8, pool=pool)


def test_other_errors_of_the_function_are_passed_on(make: MakeArena) -> None:
    with pytest.raises(ZeroDivisionError):
        largest_batch(lambda batch: 1 // 0, 1, 8, pool=make(cap="8MiB"))


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (-1, 5, "low=-1 is not accepted"),
        (5, 1, "low=5 is greater than high=1"),
        (1.5, 2, r"low=1\.5 is not"),
        (True, 2, "low=True is not"),
        (1, None, "high=None is not"),
    ],
)
def test_invalid_bounds_are_named(low: object, high: object, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        largest_batch(print, low, high)  # type: ignore[arg-type]
