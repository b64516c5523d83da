"""Safe points: live data is moved at a moment the program chooses, within a time budget, if that gains anything."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import arena
from arena import OutOfMemoryError, UsageError, sim

from ..programs import run
from ..simulated.cu import Cu
from ..simulated.test_capture import GLOBAL_MODE, begin, end
from ..threads import thread_in_native_code
from .conftest import MIB, MakeArena, Work, check

LARGE = 30 * MIB


def stranded(make: MakeArena, work: Work, **settings: object) -> tuple[arena.Arena, list[arena.Buffer]]:
    """An arena at its cap with three quarters free but stranded, and the blocks that strand them."""
    pool = make(cap="64MiB", growth="16MiB", reserve="64MiB", **settings)
    blocks = [pool.allocate(2 * MIB) for _ in range(32)]
    for value, block in enumerate(blocks):
        work.fill(block, value)
    work.cu.ok("cuCtxSynchronize_v2", 0)
    kept = blocks[::4]
    del blocks[:]
    assert pool.stats().compactable >= 32 * MIB
    return pool, kept


def check_data(work: Work, kept: list[arena.Buffer]) -> None:
    assert all(work.holds(block, 4 * index) for index, block in enumerate(kept))


def test_after_a_safe_point_a_request_passes_in_a_program_with_threads(make: MakeArena, work: Work) -> None:
    pool, kept = stranded(make, work)
    with thread_in_native_code():
        with pytest.raises(OutOfMemoryError):
            pool.allocate(LARGE)
        assert pool.safe_point(budget="1s") >= 32 * MIB
        assert pool.stats().compactable == 0
        large = pool.allocate(LARGE)
    check_data(work, kept)
    large.free()
    check(pool)


def test_the_module_function_reaches_all_open_arenas(make: MakeArena, work: Work) -> None:
    pool, kept = stranded(make, work)
    assert arena.safe_point(budget=1.0) >= 32 * MIB
    check_data(work, kept)
    assert arena.safe_point() == 0
    check(pool)


def test_with_nothing_to_gain_no_driver_call_is_made(make: MakeArena, work: Work) -> None:
    pool = make(cap="64MiB", growth="2MiB")
    block = pool.allocate(MIB)
    roomy = make(cap="1GiB", growth="64MiB")  # much is stranded, but there is plenty of room
    lonely = roomy.allocate(MIB)
    before = sim.call_table()
    assert [pool.safe_point(), roomy.safe_point(), arena.safe_point()] == [0, 0, 0]
    assert sim.call_table() == before
    assert roomy.stats().compactable > 0
    del block, lonely


def test_a_safe_point_ends_when_its_time_is_up(make: MakeArena, work: Work) -> None:
    pool, kept = stranded(make, work)
    before = pool.stats().compactable
    assert pool.safe_point(budget=0) == 0
    assert pool.stats().compactable == before
    pool.safe_point(budget="10us")  # at most one handle
    assert pool.stats().rebacked <= 1
    check_data(work, kept)
    check(pool)


def test_a_safe_point_waits_for_a_busy_device_only_within_its_time_budget(make: MakeArena, work: Work, cu: Cu) -> None:
    pool, kept = stranded(make, work)
    stream = cu.stream()
    with sim.temporarily(delay=300_000):
        cu.ok("cuMemsetD8Async", kept[0].ptr, 0, 512, stream)
    begin_time = time.monotonic()
    assert pool.safe_point(budget="20ms") == 0
    assert time.monotonic() - begin_time < 0.25
    assert pool.safe_point(budget="10s") > 0
    check_data(work, kept)
    cu.ok("cuStreamDestroy", stream)
    check(pool)


def test_nothing_is_moved_where_moving_is_off(make: MakeArena, work: Work) -> None:
    pool, kept = stranded(make, work, compact=False)
    assert pool.safe_point(budget="1s") == 0
    assert pool.stats().rebacked == 0
    check_data(work, kept)


def test_nothing_is_moved_during_a_capture(make: MakeArena, work: Work, cu: Cu) -> None:
    pool, kept = stranded(make, work)
    stream = cu.stream(non_blocking=False)
    begin(cu, stream, GLOBAL_MODE)
    assert pool.safe_point(budget="1s") == 0
    end(cu, stream)
    assert pool.stats().rebacked == 0
    assert pool.safe_point(budget="1s") > 0
    check_data(work, kept)
    cu.ok("cuStreamDestroy", stream)


def test_pinned_memory_stays_where_it_is(make: MakeArena, work: Work) -> None:
    pool, kept = stranded(make, work)
    for block in kept:
        pool.pin(block)
    assert pool.safe_point(budget="1s") == 0
    for block in kept:
        pool.unpin(block)
    assert pool.safe_point(budget="1s") > 0
    check_data(work, kept)


@pytest.mark.parametrize("budget", ["5", "5 min", "-1ms", -1, float("nan"), float("inf"), True, None, [1], 1e9])
def test_an_invalid_time_budget_is_named(make: MakeArena, budget: object) -> None:
    pool = make(cap="64MiB")
    for call in (pool.safe_point, arena.safe_point):
        with pytest.raises(
            UsageError, match=r'budget=.* is not a duration; write "5ms", "200us" or "0.1s", or a number of seconds'
        ):
            call(budget=budget)  # type: ignore[arg-type]


def test_a_closed_arena_refuses_a_safe_point(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    pool.close()
    with pytest.raises(UsageError, match="closed"):
        pool.safe_point()


def test_the_end_of_a_notebook_cell_is_a_safe_point(tmp_path: Path) -> None:
    """In its own process: a shell leaves a thread behind."""
    code = """
from IPython.core.interactiveshell import InteractiveShell
import arena
pool = arena.Arena(cap="64MiB", growth="16MiB", reserve="64MiB")
blocks = [pool.allocate(2 << 20) for _ in range(32)]
kept = blocks[::4]
del blocks
shell = InteractiveShell()
for magic in ("load_ext", "unload_ext"):
    shell.run_line_magic(magic, "arena")
    before = pool.stats().rebacked
    shell.run_cell("pass")
    print(pool.stats().rebacked > before)
"""
    done = run(code, ARENA_DRIVER="sim", IPYTHONDIR=str(tmp_path))
    assert (done.stdout, done.stderr) == ("True\nFalse\n", "")
