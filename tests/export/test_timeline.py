"""Timelines: what is sampled, when, and that sampling disturbs nothing."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import arena
from arena import _core
from arena._inspect.timeline import Sampler

from ..arena.conftest import MIB, MakeArena
from ..programs import run
from ..threads import thread_in_native_code


def wait_for(timeline: arena.Timeline, count: int) -> None:
    deadline = time.monotonic() + 20
    while len(timeline) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def samplers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, Sampler)]


def test_a_sample_is_the_account_at_that_moment(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    timeline = arena.Timeline(pool)
    before = time.monotonic()
    timeline.sample()
    buffer = pool.allocate(1000)
    timeline.sample()
    (first, empty), (second, full) = timeline.samples
    assert before <= first <= second <= time.monotonic()
    assert set(full) == {name for name in vars(_core.Stats) if not name.startswith("_")}
    assert (empty["requested"], full["requested"], full["cap"]) == (0, 1000, 64 * MIB)
    assert len(timeline) == 2
    assert repr(timeline) == "<arena.Timeline of device 0: 2 samples, at most 1 KiB live>"
    del buffer


def test_a_with_statement_samples_at_its_beginning_and_end(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    with arena.Timeline(pool) as timeline:
        buffer = pool.allocate(1000)
        assert samplers() == []
    assert [figures["requested"] for _, figures in timeline.samples] == [0, 1000]
    with timeline:  # it continues
        pass
    assert len(timeline) == 4
    del buffer


def test_a_thread_samples_in_the_background_and_ends_with_the_block(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    with arena.Timeline(pool, interval=0.001) as timeline:
        assert len(samplers()) == 1
        buffer = pool.allocate(1000)
        wait_for(timeline, len(timeline) + 5)
    assert samplers() == []
    requested = [figures["requested"] for _, figures in timeline.samples]
    assert requested == sorted(requested)
    assert requested.count(1000) >= 4
    seconds = [when for when, _ in timeline.samples]
    assert seconds == sorted(seconds)
    del buffer


def test_the_thread_ends_quietly_when_the_arena_is_closed(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    with arena.Timeline(pool, interval=0.001) as timeline:
        wait_for(timeline, 3)
        [sampler] = samplers()
        pool.close()  # where it may end at once
        sampler.join(timeout=20)
        assert samplers() == []
    assert len(timeline) >= 3


def test_an_error_in_the_with_statement_ends_the_thread_and_is_raised(make: MakeArena) -> None:
    with pytest.raises(ZeroDivisionError), arena.Timeline(make(cap="64MiB"), interval=0.001):
        raise ZeroDivisionError
    assert samplers() == []


def test_a_timeline_is_used_once_at_a_time(make: MakeArena) -> None:
    timeline = arena.Timeline(make(cap="64MiB"), interval=60)
    with timeline, pytest.raises(arena.UsageError, match="already in use"), timeline:
        pass
    assert samplers() == []


def test_live_data_may_be_moved_while_a_thread_samples(make: MakeArena) -> None:
    pool = make(cap="64MiB", growth="64MiB")
    with arena.Timeline(pool, interval=0.001) as timeline:
        # A small block in each large handle strands the rest of the handle, until live data is moved.
        buffers = [pool.allocate(2 * MIB) for _ in range(32)]
        kept = buffers[::2]
        del buffers
        pool.trim(compact=True)
        wait_for(timeline, len(timeline) + 2)
    assert pool.stats().rebacked > 0
    assert pool.stats().reserved == 32 * MIB
    del kept


def test_another_thread_still_keeps_live_data_in_place(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    with (
        thread_in_native_code(),
        arena.Timeline(pool, interval=60),
        pytest.raises(arena.UsageError, match="another thread may launch work"),
    ):
        pool.trim(compact=True)


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf"), True, "0.1"])
def test_an_invalid_interval_is_refused(make: MakeArena, interval: Any) -> None:
    with pytest.raises(arena.UsageError, match=r"interval=.* is not accepted; write a number of seconds above 0"):
        arena.Timeline(make(cap="64MiB"), interval=interval)


def test_a_timeline_saves_its_samples_and_overwrites_only_on_request(make: MakeArena, tmp_path: Path) -> None:
    timeline, target = arena.Timeline(make(cap="64MiB")), tmp_path / "counters.json"
    with pytest.raises(arena.UsageError, match="nothing to save"):
        timeline.save(target)
    timeline.sample()
    assert timeline.save(target) == target
    events = json.loads(target.read_text())["traceEvents"]
    assert events[0]["args"] == {"name": "arena on device 0"}
    with pytest.raises(arena.UsageError, match=f"{target} already exists"):
        timeline.save(target)
    timeline.sample()
    timeline.save(target, overwrite=True)
    assert len(json.loads(target.read_text())["traceEvents"]) > len(events)


def test_a_timeline_can_be_saved_after_its_arena_was_closed(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="64MiB")
    with arena.Timeline(pool) as timeline:
        pool.close()
    assert timeline.save(tmp_path / "counters.json").exists()


def test_the_interpreter_exits_quietly_while_threads_sample() -> None:
    code = """
import arena
pool = arena.Arena(cap="64MiB", device="sim:1GiB")
timelines = [arena.Timeline(pool, interval=0.000001).__enter__() for _ in range(8)]
while len(timelines[-1]) < 100:
    pass
"""
    for _ in range(3):
        done = run(code, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_forked_child_leaves_the_with_statement_quietly() -> None:
    code = """
import arena, os
pool = arena.Arena(cap="64MiB", device="sim:1GiB")
with arena.Timeline(pool, interval=60) as timeline:
    child = os.fork()
if child == 0:
    os._exit(0 if len(timeline) == 1 else 1)
assert os.waitpid(child, 0)[1] == 0
assert len(timeline) == 2
"""
    done = run(code, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
