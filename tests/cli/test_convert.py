"""``arena convert``, as a user types it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from arena import Trace

from ..programs import ROOT
from .command import run_arena

TRACE = ROOT / "benchmarks/traces/vgg.csv.gz"


def test_a_trace_is_converted_from_format_to_format(tmp_path: Path) -> None:
    names = ("run.arena", "run.trace.gz", "run.csv", "again.arena", "run.json")
    source = TRACE
    for name in names:
        done = run_arena("convert", source, tmp_path / name)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"wrote {tmp_path / name}: 22,374 events\nNext: ")
        source = tmp_path / name
    sizes = [event.size for event in Trace.read(TRACE)]
    for name in names[:-1]:
        assert [event.size for event in Trace.read(tmp_path / name)] == sizes
    assert "Next: open it at ui.perfetto.dev" in done.stdout
    shown = run_arena("replay", tmp_path / "again.arena", "--cap", "1200MiB")
    assert (shown.returncode, "fits: 22,374 events" in shown.stdout) == (0, True)


def test_to_chooses_the_format_that_the_name_does_not_say(tmp_path: Path) -> None:
    done = run_arena("convert", TRACE, tmp_path / "log.csv.gz", "--to", "rmm", "--json")
    assert json.loads(done.stdout) == {
        "events": 22374,
        "problem": "",
        "format": "rmm",
        "wrote": str(tmp_path / "log.csv.gz"),
        "fits": True,
        "ended_by": None,
    }
    assert Trace.read(tmp_path / "log.csv.gz").facts == {"source": "RMM's log"}


def test_counters_of_a_replay_that_does_not_fit_end_at_the_failure(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    done = run_arena("convert", TRACE, target, "--cap", "300MiB", "--device", "sim:2GiB")
    assert done.returncode == 3
    played = Trace.read(TRACE).replay(cap="300MiB", device="sim:2GiB", compact=True).events
    assert done.stderr == f"arena: it does not fit: the counters end at event {played - 1}\n"
    caps = [event["args"]["bytes"] for event in json.loads(target.read_text())["traceEvents"] if event["name"] == "cap"]
    assert set(caps) == {300 << 20}


def test_a_truncated_trace_is_converted_with_a_warning(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.arena", tmp_path / "cut.arena"
    run_arena("convert", TRACE, whole)
    cut.write_bytes(whole.read_bytes()[:-10])
    done = run_arena("convert", cut, tmp_path / "out.trace")
    assert done.returncode == 0
    assert done.stderr.startswith(f"arena: {cut}: byte ")
    assert len(Trace.read(tmp_path / "out.trace")) == 22374


def test_pytorchs_snapshot_is_converted(tmp_path: Path) -> None:
    entry = {"action": "alloc", "addr": 4096, "size": 1000, "stream": 0, "time_us": 5, "frames": []}
    (tmp_path / "s.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": [[entry]]}))
    assert run_arena("convert", tmp_path / "s.pickle", tmp_path / "s.csv").returncode == 0
    assert (tmp_path / "s.csv").read_text().splitlines()[1] == "0,00:00:00.000000,allocate,0x200,1000,0"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("x.csv.gz",), "'x.csv.gz' could be an RMM log or arena-trace 1; say which: rmm or text"),
        (("x.arena", "--to", "juggle"), "to='juggle' is not a format; write arena, text, rmm or perfetto"),
        (("x.arena", "--cap", "1GiB"), "--cap is only for perfetto"),
        (("x.json.gz", "--to", "perfetto"), "only text and RMM logs are compressed with gzip"),
        (("no/x.arena",), "the folder no does not exist"),
        (("x.json", "--cap", "lots"), "cap='lots' is not a size"),
        (("README.md", "--to", "text"), "README.md already exists"),
    ],
)
def test_invalid_conversions_are_refused_in_one_line(arguments: tuple[str, ...], text: str) -> None:
    done = run_arena("convert", TRACE, *arguments)
    assert done.returncode == 1
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (ROOT / arguments[0]).exists() or arguments[0] == "README.md"
