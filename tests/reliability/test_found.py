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
