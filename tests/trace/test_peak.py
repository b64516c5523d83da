"""A replay finds the peak, shows what was live at it, and misses no peak on the way."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import arena
from arena import Trace, _core
from arena._report import Report

from ..arena.conftest import MIB, MakeArena
from ..cli.command import run_arena
from ..programs import ROOT
from ..simulated.cu import Cu


@pytest.fixture
def traced() -> Iterator[None]:
    arena.trace_lines(True)
    yield
    arena.trace_lines(False)


def saw(pool: arena.Arena, path: Path) -> None:
    """A sawtooth: the second of three teeth is the highest, and its blocks come from two lines and two scopes."""
    with pool.record(path):
        for height in (3, 9, 5):
            with pool.scope("step"):
                big = [pool.allocate(2 * MIB) for _ in range(height)]
                with pool.scope("inner"):
                    small = [pool.allocate(1000) for _ in range(4)]
            for buffer in (*big, *small):
                buffer.free()


def live_after(trace: Trace) -> list[int]:
    """The live bytes by counting, without an arena."""
    sizes: dict[int, int] = {}
    found, live = [], 0
    for event in trace:
        if event.kind == "allocate":
            sizes[event.block] = max(512, -(-event.size // 512) * 512)
            live += sizes[event.block]
        elif event.kind == "free":
            live -= sizes.pop(event.block, 0)
        found.append(live)
    return found


def test_the_report_shows_the_peak_with_lines_scopes_and_ages(make: MakeArena, tmp_path: Path, traced: None) -> None:
    saw(make(cap="64MiB"), tmp_path / "run.arena")
    trace = Trace.read(tmp_path / "run.arena")
    done = trace.replay(device="sim:1GiB")
    live = live_after(trace)
    assert (done.peak.event, done.peak.live) == (live.index(max(live)), 9 * 2 * MIB + 4 * 1024)
    assert done.peak.time == trace[done.peak.event].time
    assert done.peak.live <= done.peak.reserved <= done.peak_reserved
    report = done.report
    assert report.account["live"] == done.peak.live == done.peak_live
    assert [(holder.bytes, holder.blocks) for holder in report.lines] == [(18 * MIB, 9), (4 * 1024, 4)]
    assert all(holder.name.startswith("test_peak.py:") for holder in report.lines)
    assert {holder.name: holder.blocks for holder in report.scopes} == {"step": 9, "step/inner": 4}
    assert sum(holder.blocks for holder in report.ages) == 13
    oldest = max(block.age for block in report.blocks if block.age is not None)
    first = next(event for event in trace if event.block == 7)  # the first of the second tooth
    assert oldest == pytest.approx(done.peak.time - first.time)
    assert report.moment.startswith(f"Replayed up to event {done.peak.event} of {len(trace)}, ")
    assert (done.end.account["live"], done.end.lines) == (0, [])


def test_lines_of_another_process_are_taken_from_the_trace(tmp_path: Path) -> None:
    program = (
        "import arena\n"
        "arena.trace_lines(True)\n"
        "pool = arena.Arena(device='sim:1GiB')\n"
        f"with pool.record({str(tmp_path / 'run.arena')!r}):\n"
        "    kept = [pool.allocate(5000) for _ in range(3)]\n"
        "    more = pool.allocate(3 << 20)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=50, cwd=ROOT)
    trace = Trace.read(tmp_path / "run.arena")
    for _ in range(2):  # the same lines have the same numbers the second time
        lines = trace.replay(device="sim:1GiB").report.lines
        assert [(holder.name.split(" ")[0], holder.blocks) for holder in lines] == [
            ("<string>:6", 1),
            ("<string>:5", 3),
        ]
    lines = next(iter(trace.lines.values()))
    (number,) = {_core.number_of_lines(same) for same in (lines, tuple(lines))}
    assert number >= 1 << 31


def test_lines_that_a_trace_does_not_explain_are_left_out(make: MakeArena, tmp_path: Path, traced: None) -> None:
    saw(make(cap="64MiB"), tmp_path / "run.arena")
    trace = Trace.read(tmp_path / "run.arena")
    trace.lines.clear()
    report = trace.replay(device="sim:1GiB").report
    assert (report.lines, report.account["live"]) == ([], 18 * MIB + 4096)


def test_streams_are_those_of_the_recorded_run(make: MakeArena, cu: Cu, tmp_path: Path) -> None:
    pool, stream = make(cap="64MiB"), cu.stream()
    with pool.record(tmp_path / "run.arena"):
        kept = [pool.allocate(1000), pool.allocate(2000, stream)]
    report = Trace.read(tmp_path / "run.arena").replay(device="sim:1GiB").report
    assert {(use.stream, use.bytes) for use in report.streams} == {(0, 1024), (stream, 2048)}
    kept.clear()


@pytest.mark.parametrize("name", ["gpt2", "server"])
def test_samples_miss_no_peak_however_long_the_trace(name: str) -> None:
    trace = Trace.read(ROOT / "benchmarks/traces" / f"{name}.csv.gz")
    done = trace.replay(device="sim:8GiB")
    live = live_after(trace)
    assert len(done.samples) <= 2000
    assert max(stats.live for _, stats in done.samples) == max(live) == done.peak_live == done.peak.live
    assert max(stats.reserved for _, stats in done.samples) == done.peak_reserved
    assert live.index(max(live)) == done.peak.event
    assert done.samples == sorted(done.samples, key=lambda sample: sample[0])
    bucket = -(-len(trace) // 650)
    timeline = done.report.timeline
    assert timeline is not None
    seen = dict(zip(map(round, timeline.at), timeline.figures["live"], strict=True))
    for begin in range(0, len(trace), bucket):
        events = range(begin, min(begin + bucket, len(trace)))
        sampled = [seen[event] for event in events if event in seen]
        assert (max(sampled), min(sampled)) == (max(live[i] for i in events), min(live[i] for i in events))


def test_blocks_with_numbers_far_apart_are_found() -> None:
    choose, live, trace = random.Random(5), list[int](), Trace({"timed": False})
    for step in range(4000):
        if live and choose.random() < 0.49:
            trace._append("free", step, 0, live.pop(choose.randrange(len(live))), 0, 0)
        else:
            live.append(step * 10**15 + choose.randrange(1000))
            trace._append("allocate", step, 0, live[-1], choose.choice([1, 513, 70_000]), 0)
    trace._append("free", 4000, 0, 12345678901234567, 0, 0)  # nothing is known about these
    done, expected = trace.replay(device="sim:1GiB"), live_after(trace)
    assert (done.peak.live, done.peak.event) == (max(expected), expected.index(max(expected)))
    assert done.stats.live == expected[-1]
    assert done.report.timeline is not None
    assert done.report.timeline.unit == "events"
    assert not done.report.ages  # its times mean nothing


def test_a_trace_that_does_not_fit_is_reported_where_it_failed(make: MakeArena, tmp_path: Path, traced: None) -> None:
    saw(make(cap="64MiB"), tmp_path / "run.arena")
    trace = Trace.read(tmp_path / "run.arena")
    done = trace.replay(device="sim:1GiB", cap="12MiB")
    live = live_after(trace)[: done.events - 1]
    assert not done.fits
    assert (done.peak.event, done.peak.live) == (live.index(max(live)), max(live))
    assert done.report is done.end
    assert (done.report.verdict, done.report.account["live"]) == ("cap reached", live[-1])
    assert f"event {done.events - 1} of {len(trace)}" in done.report.moment
    assert "a request of 2 MiB from test_peak.py:" in done.report.moment
    assert done.report.timeline is not None
    assert done.report.timeline.at[-1] == pytest.approx(trace[done.events - 1].time)


def test_tracking_the_peak_costs_the_run_nothing() -> None:
    trace = Trace.read(ROOT / "benchmarks/traces/server.csv.gz")
    done = trace.replay(device="sim:8GiB")
    with arena.Arena(device="sim:8GiB") as pool:
        begin = arena.sim.clock()
        replay = _core.Replay(trace._core, pool._open, len(trace))
        assert not replay.step(len(trace))
        assert done.priced_ms == pytest.approx((arena.sim.clock() - begin) / 1000, rel=0.01)
        # The one inspection itself queries the last event of each idle handle.
        assert done.stats.driver_calls == pytest.approx(pool.stats().driver_calls, abs=30)
        del replay


def test_a_trace_without_events_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "empty.trace").write_text("# arena-trace 1 nothing\n")
    done = Trace.read(tmp_path / "empty.trace").replay(device="sim:1GiB")
    assert (done.fits, done.peak.live, done.samples, done.report.timeline) == (True, 0, [], None)
    assert done.report.moment == "Replayed: the trace has no events."


def test_a_recording_may_begin_with_a_scope_or_a_reserve(make: MakeArena, tmp_path: Path) -> None:
    for name in ("scope", "reserve"):
        pool = make(cap="64MiB")
        with pool.record(tmp_path / name):
            if name == "reserve":
                pool.reserve("4MiB")
            else:
                with pool.scope("first"):
                    pass
        assert next(iter(Trace.read(tmp_path / name))).kind == {"scope": "scope_begin", "reserve": "reserve"}[name]


def test_the_command_shows_the_peak_and_its_largest_holders(make: MakeArena, tmp_path: Path, traced: None) -> None:
    path = tmp_path / "run.arena"
    saw(make(cap="64MiB"), path)
    shown = run_arena("replay", path, "--save", tmp_path / "r.json").stdout
    lines = shown.splitlines()
    assert lines[0].startswith("fits: ")
    assert "the peak of live bytes." in lines[1]
    assert "18 MiB was live:" in lines[2]
    assert lines[3].split()[:3] == ["18", "MiB", "100%"]
    assert "test_peak.py:" in lines[3]
    assert lines[3].endswith(", 9 blocks")
    assert any("▲" in line and "18 MiB live" in line for line in lines)
    assert all(len(line) <= 80 for line in lines if "█" in line or "┤" in line)
    assert "ms of driver time" in shown
    saved = arena.load(tmp_path / "r.json")
    assert isinstance(saved, Report)
    assert saved.account["live"] == 18 * MIB + 4096
    assert saved.timeline is not None
    facts = json.loads(run_arena("replay", path, "--json").stdout)
    assert (facts["peak"]["live"], facts["held"]["lines"][0]["blocks"]) == (18 * MIB + 4096, 9)
    assert max(facts["timeline"]["figures"]["live"]) == facts["peak"]["live"]


def test_the_command_says_where_and_why_the_trace_does_not_fit(make: MakeArena, tmp_path: Path, traced: None) -> None:
    saw(make(cap="64MiB"), tmp_path / "run.arena")
    done = run_arena("replay", tmp_path / "run.arena", "--cap", "12MiB")
    lines = done.stdout.splitlines()
    assert done.returncode == 3
    assert lines[0].startswith("does not fit under a cap of 12 MiB: event ")
    assert lines[1].startswith("cap reached; ")
    assert "into the run: a request of 2 MiB from test_peak.py:" in lines[2]
    facts = json.loads(run_arena("replay", tmp_path / "run.arena", "--cap", "12MiB", "--json").stdout)
    assert facts["moment"] == lines[2]
