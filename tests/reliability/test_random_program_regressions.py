"""Bugs found by the random programs of test_model.py, reduced as far as possible."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

import arena
from arena import DriverError, OutOfMemoryError, sim

from ..arena.conftest import MIB, MakeArena, check
from ..arena.conftest import cu as cu
from ..arena.conftest import make as make
from ..simulated.cu import Cu
from .queued_work import no_races

GRANULE = 2 * MIB


def test_a_free_handle_that_only_partly_overlaps_a_request_is_not_in_its_way(make: MakeArena) -> None:
    """It can neither be moved there nor used whole, so it must be exchanged for smaller ones."""
    pool = make(cap=6 * GRANULE, growth=4 * GRANULE)
    low, middle = pool.allocate(GRANULE), pool.allocate(2 * GRANULE)  # on handles of one granule
    pool.reserve(6 * GRANULE)  # one handle of three
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
    """It is exchanged for smaller ones; the request used to fail with most of the cap unused."""
    pool = make(cap=6 * GRANULE, growth=4 * GRANULE)
    blocks = [pool.allocate(GRANULE) for _ in range(3)]  # on handles of one granule
    blocks.pop(1).free()
    pool.trim()
    pool.reserve(6 * GRANULE)  # one handle of four
    assert (check(pool).spare, pool.stats().reserved) == (4 * GRANULE, 6 * GRANULE)
    assert isinstance(pool.allocate(GRANULE), arena.Buffer)
    check(pool)


@pytest.mark.parametrize("nth", range(1, 5))
@pytest.mark.parametrize(
    "make_room", [lambda pool: pool.allocate(56 * MIB), lambda pool: pool.trim(compact=True)], ids=["request", "trim"]
)
def test_moved_live_data_is_intact_when_the_driver_refuses_to_wait_for_the_copy(
    make: MakeArena, cu: Cu, make_room: Callable[[arena.Arena], object], nth: int
) -> None:
    """It is copied from host memory, and the copy may go on after the call. Others used to write there too early."""
    pool = make(cap="64MiB", growth="64MiB", compact=True)
    stream = cu.stream()
    blocks = [pool.allocate(GRANULE, stream) for _ in range(8)]
    for block in blocks[1::2]:
        block.free()
    with sim.temporarily(delay=2000):
        sim.fail("cuCtxSynchronize", "CUDA_ERROR_UNKNOWN", nth=nth)
        with contextlib.suppress(DriverError):
            make_room(pool)
        for block in blocks[::2]:
            cu.ok("cuMemsetD8Async", block.ptr, nth, GRANULE, stream)
    sim.clear_planned()
    no_races()
    cu.ok("cuStreamSynchronize", stream)
    make_room(pool)
    assert pool.stats().rebacked > 0
    assert all(cu.read(block.ptr, GRANULE) == bytes([nth]) * GRANULE for block in blocks[::2])
    check(pool)


def test_plain_segments_are_not_exchanged_for_a_larger_one_while_others_use_the_headroom(make: MakeArena) -> None:
    """They could not be taken again. `largest` used to promise that, and the idle segments were lost."""
    pool = make(cap="48MiB", growth=GRANULE, headroom="24MiB", vmm=False)
    blocks = [pool.allocate(4 * GRANULE) for _ in range(3)]
    assert pool.stats().largest == 24 * MIB
    with sim.temporarily(other=pool.stats().device_free):
        blocks.pop(0).free()
        blocks.pop(0).free()
        largest = pool.snapshot().stats["largest"]
        assert largest == 4 * GRANULE
        with pytest.raises(OutOfMemoryError, match="fragmented; the largest request that would pass is 8 MiB"):
            pool.allocate(8 * GRANULE)
        assert pool.stats().reserved == 12 * GRANULE
        pool.allocate(largest).free()
    assert pool.snapshot().stats["largest"] == 48 * MIB - 4 * GRANULE
    assert len(blocks) == 1
    check(pool)
