"""What a watched arena remembers about its peak and its account over time."""

from __future__ import annotations

import dataclasses
import random
import threading

import pytest

import arena
from arena import _core
from arena._inspect.snapshot import Snapshot
from arena._pool.watch import Watched

from ..threads import run_together
from .conftest import GIB, MIB, MakeArena, check


def at_peak(pool: arena.Arena, watch: _core.Watch) -> Snapshot:
    assert watch.peak is not None
    return Snapshot._of(0, 1, watch.peak[1], may_move=True, moving="allowed")


def watch_of(pool: arena.Arena) -> _core.Watch:
    watch = _core.Watch()
    pool._open.watch(watch)
    return watch


@pytest.mark.parametrize("settings", [{}, {"vmm": False}, {"growth": "2MiB"}])
def test_the_peak_equals_a_snapshot_taken_at_that_moment(make: MakeArena, settings: dict[str, object]) -> None:
    pool = make(cap="512MiB", **settings)
    watch = watch_of(pool)
    chance = random.Random(7)
    held: list[arena.Buffer] = []
    best = pool.snapshot()
    for _ in range(400):
        if held and chance.random() < 0.48:
            held.pop(chance.randrange(len(held))).free()
        else:
            held.append(pool.allocate(chance.choice((600, 5000, MIB, 3 * MIB))))
        now = pool.snapshot()
        best = now if now.stats["live"] > best.stats["live"] else best
    for buffer in held:
        buffer.free()
    found = at_peak(pool, watch)
    same = ("pieces", "handles", "segments", "granule", "plain", "largest_free", "aliases")
    pieces = [piece._replace(age=None) for piece in found.pieces], [piece._replace(age=None) for piece in best.pieces]
    assert pieces[0] == pieces[1]
    found, best = dataclasses.replace(found, pieces=[]), dataclasses.replace(best, pieces=[])
    assert {name: getattr(found, name) for name in same} == {name: getattr(best, name) for name in same}
    counted = ("requested", "live", "reserved", "stranded", "releasable", "spare", "blocks", "peak_live")
    assert {name: found.stats[name] for name in counted} == {name: best.stats[name] for name in counted}
    check(pool)


def test_the_samples_include_the_peaks_and_the_valleys(make: MakeArena) -> None:
    pool = make(cap="256MiB")
    watch = watch_of(pool)
    for size in (10, 30, 20):
        buffers = [pool.allocate(MIB) for _ in range(size)]
        del buffers
    pool.trim()
    live = [stats.live for _, stats in watch.samples]
    times = [at for at, _ in watch.samples]
    assert (max(live), min(live)) == (30 * MIB, 0)
    assert times == sorted(times)
    assert max(stats.reserved for _, stats in watch.samples) == pool.stats().peak_reserved
    for _, stats in watch.samples:
        reasons = ("requested", "rounding", "pending", "captured", "releasable", "stranded", "spare")
        assert stats.reserved == sum(getattr(stats, name) for name in reasons)


def test_the_recorded_peak_stays_small_and_close_however_long_the_climb(make: MakeArena) -> None:
    """Each step is a new peak. Without limits, 10,000 steps would each inspect up to 10,000 pieces."""
    pool = make(cap="1GiB")
    watch = watch_of(pool)
    held = []
    for _ in range(10_000):
        held.append(pool.allocate(4096))
        pool.allocate(512).free()
    highest = pool.stats().peak_live
    held.clear()
    assert len(watch.samples) < 4000
    assert highest * 63 // 64 <= at_peak(pool, watch).stats["live"] <= highest


def test_the_peak_of_several_threads_is_found(make: MakeArena) -> None:
    pool = make(cap="1GiB", compact=False)
    watch = watch_of(pool)
    together = threading.Barrier(4)

    def work() -> None:
        for _ in range(50):
            buffers = [pool.allocate(MIB) for _ in range(4)]
            del buffers
        together.wait()
        kept = [pool.allocate(8 * MIB) for _ in range(4)]
        together.wait()
        del kept

    run_together(*[work] * 4)
    assert at_peak(pool, watch).stats["live"] == pool.stats().peak_live == 128 * MIB


def test_peaks_start_again_from_what_is_live_and_reserved(make: MakeArena) -> None:
    pool = make(cap="256MiB")
    kept = pool.allocate(3 * MIB + 1)
    pool.allocate(100 * MIB).free()
    pool.trim()
    now = pool.stats()
    assert (now.peak_requested, now.peak_live) == (103 * MIB + 1, 103 * MIB + 512)
    assert now.peak_reserved > now.reserved
    pool.reset_peaks()
    again = pool.stats()
    assert (again.peak_requested, again.peak_live) == (3 * MIB + 1, 3 * MIB + 512)
    assert again.peak_reserved == now.reserved
    assert pool.report().peak["reserved"] == now.reserved
    assert pool._open.highest() == (now.peak_live, now.peak_reserved)
    pool.allocate(50 * MIB).free()
    assert pool.stats().peak_live == 53 * MIB + 512
    pool.allocate(100 * MIB).free()
    assert pool.stats().peak_live == now.peak_live
    kept.free()
    assert pool.stats().peak_live == now.peak_live
    check(pool)
    pool.close()
    with pytest.raises(arena.UsageError, match="closed"):
        pool.reset_peaks()


def test_peaks_are_exact_after_a_reset_while_threads_allocate(make: MakeArena) -> None:
    pool = make(cap="1GiB", compact=False)
    together = threading.Barrier(4)

    def work() -> None:
        for number in range(300):
            held = [pool.allocate(512 * size) for size in range(1, 9)]
            del held
            if number % 50 == 0:
                pool.reset_peaks()
        if together.wait() == 0:
            pool.reset_peaks()
        together.wait()
        kept = [pool.allocate(512) for _ in range(100)]
        together.wait()
        del kept

    run_together(*[work] * 4)
    assert pool.stats().peak_live == 4 * 100 * 512
    check(pool)


def test_ages_at_the_peak_are_those_of_that_moment(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    watch = watch_of(pool)
    arena.trace_lines(True)
    try:
        buffer = pool.allocate(MIB)
    finally:
        arena.trace_lines(False)
    threading.Event().wait(0.05)
    buffer.free()
    (piece,) = at_peak(pool, watch).live
    assert piece.age is not None
    assert piece.age < 0.04
    assert piece.lines[0].function.endswith("ages_at_the_peak_are_those_of_that_moment")


def test_a_peak_outlives_its_arena(make: MakeArena) -> None:
    watched = []
    for close in (True, False):
        pool = make(cap="64MiB") if close else arena.Arena(cap="64MiB", device="sim:1GiB")
        watched.append(Watched(pool))
        buffer = pool.allocate(3 * MIB)
        if close:
            pool.close()
        del pool, buffer
    for one in watched:
        report = one.report("At the end")
        assert report is not None
        assert (report.account["live"], report.end) == (3 * MIB, None)
        assert report.moment.startswith("At the peak, ")


def test_watching_does_not_change_what_an_arena_does(make: MakeArena) -> None:
    def work(pool: arena.Arena) -> arena.Stats:
        chance = random.Random(3)
        held: list[arena.Buffer] = []
        for _ in range(2000):
            if held and chance.random() < 0.5:
                held.pop(chance.randrange(len(held))).free()
            else:
                held.append(pool.allocate(chance.choice((600, 5000, 100_000, MIB))))
        held.clear()
        return pool.stats()

    plain, watched = make(cap=GIB), make(cap=GIB)
    watch_of(watched)
    one, two = work(plain), work(watched)
    for name in ("peak_live", "peak_reserved", "maps", "unmaps", "hits", "driver_calls"):
        assert getattr(one, name) == getattr(two, name), name
