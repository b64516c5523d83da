"""Counters in the Trace Event Format: checked against its rules, and with Perfetto's own reader.

``perfetto_engine.py`` says how that works without a network. The reader of chrome://tracing is a part of the browser;
for it there are the rules.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import arena
from arena._export import perfetto

from ..arena.conftest import MakeArena
from .perfetto_engine import Engine

REASONS = ("requested", "rounding", "pending", "captured", "releasable", "stranded", "spare")
PER_SAMPLE = ["reserved", "cap", "largest request", "device free"]


def recorded(make: MakeArena) -> arena.Timeline:
    pool = make(cap="1GiB", reserve="64MiB")
    live = []
    with arena.Timeline(pool) as timeline:
        for size in (1000, 5_000_000, 70_000_000):
            live.append(pool.allocate(size))
            timeline.sample()
        live.pop(1).free()
    return timeline


def test_the_file_follows_the_rules_of_the_format(make: MakeArena, tmp_path: Path) -> None:
    timeline = recorded(make)
    data = json.loads(timeline.save(tmp_path / "counters.json").read_bytes())
    assert data.keys() == {"displayTimeUnit", "traceEvents"}
    assert data["displayTimeUnit"] in ("ms", "ns")
    process, thread, *counters = data["traceEvents"]
    for event, name in ((process, "process_name"), (thread, "thread_name")):
        assert event.keys() == {"ph", "name", "pid", "tid", "ts", "args"}
        assert (event["ph"], event["name"], event["pid"]) == ("M", name, os.getpid())
        assert event["args"].keys() == {"name"}
    assert len(counters) == len(timeline) * len(PER_SAMPLE)
    last = 0.0
    for event in counters:
        assert event.keys() == {"ph", "name", "pid", "tid", "ts", "args"}
        assert (event["ph"], event["pid"], event["tid"]) == ("C", process["pid"], thread["tid"])
        assert type(event["ts"]) in (int, float)
        assert event["ts"] >= last
        last = event["ts"]
        assert event["args"]
        assert all(type(value) is int for value in event["args"].values())
    for name in PER_SAMPLE:  # a counter has the same series each time, in the same order
        assert len({tuple(event["args"]) for event in counters if event["name"] == name}) == 1
    stacks = [event["args"] for event in counters if event["name"] == "reserved"]
    assert [tuple(stack) for stack in stacks] == [REASONS] * len(timeline)
    assert [sum(stack.values()) for stack in stacks] == [figures["reserved"] for _, figures in timeline.samples]


def test_perfetto_reads_every_counter_back(make: MakeArena, tmp_path: Path, engine: Engine) -> None:
    timeline = recorded(make)
    counters, complaints, processes = engine.read(
        timeline.save(tmp_path / "counters.json").read_bytes(),
        [
            "select t.name, c.ts, c.value, p.pid from counter c join process_counter_track t on c.track_id = t.id "
            "join process p using (upid) order by t.name, c.ts",
            "select name, value from stats where value > 0 and severity in ('error', 'data_loss')",
            "select p.name as process, t.name as thread from process p join thread t using (upid) "
            f"where p.pid = {os.getpid()}",
        ],
    )
    assert complaints == []
    assert processes == [{"process": "arena on device 0", "thread": "MainThread"}]
    assert {row["pid"] for row in counters} == {os.getpid()}
    read: dict[str, list[tuple[int, float]]] = {}
    for row in counters:
        read.setdefault(row["name"], []).append((row["ts"], row["value"]))
    tracks = {f"reserved {reason}": reason for reason in REASONS}
    tracks |= {"cap bytes": "cap", "largest request bytes": "largest", "device free bytes": "device_free"}
    assert read.keys() == tracks.keys()
    for track, figure in tracks.items():
        assert [value for _, value in read[track]] == [figures[figure] for _, figures in timeline.samples]
        assert [when for when, _ in read[track]] == pytest.approx(
            [seconds * 1e9 for seconds, _ in timeline.samples], abs=2
        )


def test_perfetto_reads_a_long_trace_whole(tmp_path: Path, engine: Engine) -> None:
    samples = ((number / 1000, {"requested": number, "cap": 1 << 40}) for number in range(20_000))
    path = perfetto.write(tmp_path / "counters.json", samples)
    rows, complaints = engine.read(
        path.read_bytes(),
        [
            "select t.name, count(*) as count, min(c.value) as low, max(c.value) as high from counter c "
            "join process_counter_track t on c.track_id = t.id group by 1 order by 1",
            "select name, value from stats where value > 0 and severity in ('error', 'data_loss')",
        ],
    )
    assert complaints == []
    assert rows == [
        {"name": "cap bytes", "count": 20_000, "low": 1 << 40, "high": 1 << 40},
        {"name": "reserved requested", "count": 20_000, "low": 0, "high": 19_999},
    ]


def test_figures_missing_from_a_sample_are_left_out() -> None:
    events = list(perfetto.events([(1.5, {"spare": 7, "unknown": 8}), (2, {})], name="x", pid=9))
    assert [event["ph"] for event in events] == ["M", "M", "C"]
    assert events[-1] == {"ph": "C", "name": "reserved", "ts": 1_500_000, "pid": 9, "tid": 9, "args": {"spare": 7}}


@pytest.mark.parametrize("seconds", [float("nan"), float("inf")])
def test_an_invalid_time_is_refused_and_leaves_no_file(tmp_path: Path, seconds: float) -> None:
    with pytest.raises(arena.UsageError, match="must be a finite number of seconds"):
        perfetto.write(tmp_path / "counters.json", [(0, {"cap": 1}), (seconds, {"cap": 1})])
    assert os.listdir(tmp_path) == []


def test_samples_are_consumed_one_at_a_time(tmp_path: Path) -> None:
    taken = 0

    def samples() -> Iterator[perfetto.Sample]:
        nonlocal taken
        for taken in range(1, 4):
            yield taken, {"cap": taken}

    iterator = perfetto.events(samples(), name="x", pid=1)
    for _ in range(3):
        next(iterator)
    assert taken == 1
