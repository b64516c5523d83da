"""What the random programs of test_model.py found, as short as it got, and stayed mended since."""

from __future__ import annotations

import arena

from ..arena.conftest import MIB, MakeArena, check
from ..arena.conftest import cu as cu
from ..arena.conftest import make as make

GRANULE = 2 * MIB


def test_a_free_handle_that_lies_only_partly_where_a_request_goes_is_not_in_its_way(make: MakeArena) -> None:
    """It can neither be moved there nor used whole, so it must be given back for smaller ones."""
    pool = make(cap=6 * GRANULE, growth=4 * GRANULE)
    low, middle = pool.allocate(GRANULE), pool.allocate(2 * GRANULE)  # on handles of one granule
    pool.reserve(6 * GRANULE)  # one of three
    high = pool.allocate(GRANULE)
    middle.free()
    pool.set_cap(4 * GRANULE)
    low.free()
    high.free()
    assert check(pool, highest_cap=6 * GRANULE).reserved == 4 * GRANULE
    assert pool.stats().largest == 4 * GRANULE
    assert isinstance(pool.allocate(4 * GRANULE), arena.Buffer)
    check(pool, highest_cap=6 * GRANULE)


def test_a_spare_handle_that_is_too_large_for_a_hole_is_not_in_its_way(make: MakeArena) -> None:
    """It is given back for smaller ones; before, the request failed with most of the cap unused."""
    pool = make(cap=6 * GRANULE, growth=4 * GRANULE)
    blocks = [pool.allocate(GRANULE) for _ in range(3)]  # on handles of one granule
    blocks.pop(1).free()
    pool.trim()
    pool.reserve(6 * GRANULE)  # one of four
    assert (check(pool).spare, pool.stats().reserved) == (4 * GRANULE, 6 * GRANULE)
    assert isinstance(pool.allocate(GRANULE), arena.Buffer)
    check(pool)
