"""The largest batch that fits is found by trying few."""

from __future__ import annotations

import random

import cupy
import pytest

from arena import OutOfMemoryError, UsageError, largest_batch

from ..arena.conftest import MIB, MakeArena


@pytest.mark.parametrize("seed", range(8))
def test_the_batch_is_the_one_that_trying_all_finds(make: MakeArena, seed: int) -> None:
    choose = random.Random(seed)
    pool = make(cap=f"{choose.randrange(20, 200)}MiB")
    fixed, item = choose.randrange(10 * MIB), choose.randrange(MIB // 4, 3 * MIB)

    def run(batch: int) -> None:
        weights = pool.allocate(fixed)
        activations = [pool.allocate(item) for _ in range(batch)]
        assert weights.nbytes + len(activations) >= 0

    def passes(batch: int) -> bool:
        try:
            run(batch)
        except OutOfMemoryError:
            return False
        return True

    expected = max(batch for batch in range(1, 65) if passes(batch))
    found = largest_batch(run, 1, 64, pool=pool)
    assert found.batch == expected
    assert found.peak >= fixed + expected * item
    assert len(found.tried) <= 9
    assert pool.stats().blocks == 0


def test_arrays_of_cupy_come_from_the_arena(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    found = largest_batch(lambda batch: cupy.empty((batch, MIB), dtype="u1"), 1, 500, pool=pool)
    assert (found.batch, found.peak) == (64, 64 * MIB)


def test_all_batches_may_fit_or_none(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    found = largest_batch(lambda batch: pool.allocate(batch), 5, 50, pool=pool)
    assert (found.batch, list(found.tried)) == (50, [5, 50])
    assert largest_batch(lambda batch: pool.allocate(batch), 7, 7, pool=pool).batch == 7
    with pytest.raises(OutOfMemoryError):
        largest_batch(lambda batch: pool.allocate(batch * 65 * MIB), 1, 8, pool=pool)


def test_other_errors_are_the_functions_own(make: MakeArena) -> None:
    with pytest.raises(ZeroDivisionError):
        largest_batch(lambda batch: 1 // 0, 1, 8, pool=make(cap="8MiB"))


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (-1, 5, "low=-1 is not accepted"),
        (5, 1, "low=5 is more than high=1"),
        (1.5, 2, r"low=1\.5 is not"),
        (True, 2, "low=True is not"),
        (1, None, "high=None is not"),
    ],
)
def test_bounds_that_cannot_be_are_named(low: object, high: object, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        largest_batch(print, low, high)  # type: ignore[arg-type]
