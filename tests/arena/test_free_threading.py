"""Several threads use one arena at the same time. The tests run on any Python; without a GIL, threads really overlap.

Each round begins at a barrier and is repeated, because races rarely show.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import arena
from arena import OutOfMemoryError, UsageError, _core

from ..programs import run
from ..simulated.cu import PER_THREAD, Cu
from ..threads import run_together
from .conftest import MIB, MakeArena, Work, check

THREADS = 4
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def often() -> object:
    """Where there is a GIL, let threads take turns after a few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python has a GIL")
def test_importing_arena_leaves_the_gil_off() -> None:
    done = run(
        "import sys; import arena, arena.sim; pool = arena.Arena(device='sim:1GiB')\n"
        "pool.allocate(512).free(); pool.report(); pool.snapshot()\n"
        "assert not sys._is_gil_enabled()"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_threads_get_memory_of_their_own_and_all_of_it_is_counted(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="256MiB")

    context = cu.out("cuCtxGetCurrent")

    def use(value: int) -> None:
        cu.ok("cuCtxSetCurrent", context)
        for turn in range(60):
            with pool.allocate(4096 * (1 + turn % 3), PER_THREAD) as buffer:
                work.fill(buffer, value, PER_THREAD)
                assert work.holds(buffer, value, PER_THREAD)

    run_together(*(lambda value=value: use(value) for value in range(THREADS)))
    stats = check(pool)
    assert (stats.blocks, stats.requested, stats.allocations) == (0, 0, THREADS * 60)


def test_buffers_are_used_and_freed_by_other_threads_than_allocated_them(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="256MiB")
    streams = [cu.stream() for _ in range(2)]
    handed: queue.Queue[arena.Buffer | None] = queue.Queue()
    context = cu.out("cuCtxGetCurrent")

    def give() -> None:
        cu.ok("cuCtxSetCurrent", context)
        for _ in range(200):
            buffer = pool.allocate(4096, streams[0])
            work.fill(buffer, 1, streams[0])
            cu.ok("cuStreamSynchronize", streams[0])
            handed.put(buffer)
        handed.put(None)

    def take() -> None:
        cu.ok("cuCtxSetCurrent", context)
        while (buffer := handed.get()) is not None:
            buffer.record_stream(streams[1])
            work.fill(buffer, 2, streams[1])
            buffer.free()

    run_together(give, take, give, take)
    assert check(pool).blocks == 0
    for stream in streams:
        cu.ok("cuStreamSynchronize", stream)
        cu.ok("cuStreamDestroy_v2", stream)


def test_a_buffer_that_all_threads_free_is_freed_once(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    for _ in range(100):
        buffer = pool.allocate(4096)
        run_together(*[buffer.free] * THREADS)
        assert pool.stats().blocks == 0
    assert check(pool).allocations == 100


def test_a_buffer_freed_while_others_read_it_answers_or_refuses(make: MakeArena) -> None:
    pool = make(cap="64MiB")

    def look(buffer: arena.Buffer) -> None:
        try:
            assert buffer.__cuda_array_interface__["data"][0] == buffer.ptr
            buffer.record_stream(1)
            pool.pin(buffer)
            pool.unpin(buffer)
        except UsageError:  # it was freed
            pass
        repr(buffer)

    for _ in range(100):
        buffer = pool.allocate(4096)
        run_together(buffer.free, lambda buffer=buffer: look(buffer), lambda buffer=buffer: look(buffer))
    assert check(pool).blocks == 0


def test_concurrent_stats_and_snapshots_always_add_up(make: MakeArena) -> None:
    pool = make(cap="256MiB")
    over = threading.Event()

    def use() -> None:
        try:
            for _ in range(20):
                held = [pool.allocate(512 << turn % 8, PER_THREAD) for turn in range(50)]
                for buffer in held:
                    buffer.free()
        finally:
            over.set()

    def look() -> None:
        while not over.is_set():
            s = pool.stats()
            assert s.reserved == s.requested + s.rounding + s.pending + s.captured + s.releasable + s.stranded + s.spare
            snapshot = pool.snapshot()
            assert sum(p.size for p in snapshot.pieces if p.state == "live") == snapshot.stats["live"]
            pool.validate()
            pool.report()
            assert "arena_cap_bytes" in pool.metrics()
            assert " live, " in repr(pool)

    run_together(use, use, look)
    assert check(pool).blocks == 0


def test_other_threads_run_while_a_new_buffer_waits_for_the_lock(
    make: MakeArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARENA_VALIDATE", raising=False)  # so many blocks would be validated after each operation
    pool = make(cap="256MiB")
    kept = [pool.allocate(512) for _ in range(40_000)]  # so that validation takes a while, with the lock held
    pool.on_pressure(1.0, lambda: None)  # so that nothing takes the fast path
    over, ticks, most = threading.Event(), 0, 0

    def allocate_watched() -> None:
        nonlocal most
        before, begin = ticks, time.monotonic()
        made = pool.allocate(700)
        if time.monotonic() - begin > 0.02:  # it had to wait
            most = max(most, ticks - before)
        made.free()

    def tick() -> None:
        nonlocal ticks
        while not over.is_set():
            ticks += 1
            time.sleep(0.0005)

    def hold() -> None:
        while not over.is_set():
            pool.validate()

    def use() -> None:
        end = time.monotonic() + 30
        while most < 12 and time.monotonic() < end:
            allocate_watched()
        over.set()

    run_together(use, tick, hold, hold)
    assert most >= 12
    kept.clear()


def test_scopes_of_different_threads_do_not_mix(make: MakeArena) -> None:
    pool = make(cap="256MiB")

    def use(number: int) -> None:
        for turn in range(10):
            with pool.scope(f"{number}", budget=64 * 1024) as scope:
                held = [pool.allocate(1024) for _ in range(number + 1)]
                assert (scope.live, scope.blocks) == (1024 * (number + 1), number + 1)
                with pytest.raises(OutOfMemoryError, match=f"budget of scope {number} reached"):
                    pool.allocate(64 * 1024)
                del held
            assert (scope.peak, scope.leaked) == (1024 * (number + 1), 0), turn

    run_together(*(lambda number=number: use(number) for number in range(THREADS)))
    check(pool)


def test_an_arena_can_be_closed_by_several_threads_while_others_use_it(make: MakeArena) -> None:
    for _ in range(20):
        pool = make(cap="64MiB")

        def use(pool: arena.Arena = pool) -> None:
            while True:
                pool.allocate(4096, PER_THREAD).free()
                assert pool.vmm
                assert pool.stats().cap == 64 * MIB
                assert "device 0" in repr(pool)

        def use_to_the_end(use: Callable[[], None] = use) -> None:
            with pytest.raises(UsageError, match="the arena is closed"):
                use()

        run_together(use_to_the_end, use_to_the_end, pool.close, pool.close)
        assert repr(pool) == "<arena.Arena on device 0, closed>"


def test_oom_and_pressure_callbacks_are_called_in_any_thread(make: MakeArena) -> None:
    pool = make(cap="16MiB", growth="2MiB", compact=False)
    fired: list[str] = []
    cache: list[arena.Buffer] = []
    pool.on_pressure(0.5, lambda: fired.append("half"))
    pool.on_pressure(0.5, lambda: fired.append("half again"))
    pool.on_oom(lambda error: cache.clear())

    def use() -> None:
        for _ in range(20):
            with contextlib.suppress(OutOfMemoryError):  # other threads took what was freed
                cache.append(pool.allocate(2 * MIB, PER_THREAD))

    run_together(*[use] * THREADS)
    cache.clear()
    assert sorted(fired) == ["half", "half again"]
    assert check(pool).blocks == 0


def test_a_recording_stopped_by_several_threads_has_all_events_and_one_end(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="64MiB")
    for turn in range(10):
        recording = pool.record(tmp_path / f"{turn}.arena")

        def use() -> None:
            for _ in range(50):
                pool.allocate(4096, PER_THREAD).free()

        run_together(use, use)
        run_together(*[recording.stop] * THREADS)
        events = arena.Trace.read(recording.path)
        assert len(events) == recording.events
        assert [event.kind for event in events].count("allocate") == 100


def test_arenas_made_by_several_threads_are_recorded_to_separate_files(
    make: MakeArena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARENA_RECORD", str(tmp_path / "run.arena"))
    monkeypatch.setattr("arena._trace.record._environment_used", iter(range(1, 1000)))
    for _ in range(5):
        pools = run_together(*[lambda: make(cap="2MiB")] * THREADS)
        run_together(*[pool.close for pool in pools if isinstance(pool, arena.Arena)] * 2)
    assert len(list(tmp_path.iterdir())) == 5 * THREADS


def test_threads_that_ask_first_get_the_same_default_arena(make: MakeArena) -> None:
    for _ in range(20):
        found = run_together(*[arena.default_arena] * THREADS)
        assert len(set(map(id, found))) == 1
        assert isinstance(found[0], arena.Arena)
        found[0].close()


def test_a_simulated_device_is_created_once(make: MakeArena) -> None:
    for gib in range(3, 8):
        found = run_together(*[lambda gib=gib: arena.Arena(device=f"sim:{gib}GiB").device] * THREADS)
        assert len(set(found)) == 1
    assert len(arena.Driver.open("sim").devices()) == 6


def test_arenas_may_be_made_and_dropped_while_all_are_reported(make: MakeArena) -> None:
    arena.Arena(cap="2MiB").close()
    over = threading.Event()

    def come_and_go() -> None:
        for _ in range(100):
            arena.Arena(cap="2MiB")

    def look() -> None:
        while not over.is_set():
            arena.report()

    def use() -> None:
        try:
            run_together(come_and_go, come_and_go)
        finally:
            over.set()

    run_together(use, look)


def test_an_arena_is_complete_when_other_threads_can_first_see_it(
    make: MakeArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[arena.Report] = []
    remember = arena._pool.arena.remember

    def remember_and_look(pool: arena.Arena) -> None:
        remember(pool)
        seen.append(pool.report())

    monkeypatch.setattr(arena._pool.arena, "remember", remember_and_look)
    make(cap="2MiB").close()
    assert len(seen) == 1


def test_source_lines_of_different_threads_are_kept_apart(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    kept: list[arena.Buffer] = []

    def first() -> None:
        for _ in range(50):
            kept.append(pool.allocate(512))

    def second() -> None:
        for _ in range(50):
            kept.append(pool.allocate(1024))

    arena.trace_lines(True)
    try:
        run_together(first, second, first, second)
    finally:
        arena.trace_lines(False)
    names = {512: first.__qualname__, 1024: second.__qualname__}
    pieces = [piece for piece in pool.snapshot().pieces if piece.state == "live"]
    assert len(pieces) == 200
    assert all(piece.lines[0].function == names[piece.requested] for piece in pieces)
    kept.clear()


def test_recorded_lines_have_the_same_number_in_all_threads() -> None:
    for turn in range(200):
        lines = (("program.py", turn, "main"),)
        assert len(set(run_together(*[lambda lines=lines: _core.number_of_lines(lines)] * THREADS))) == 1
