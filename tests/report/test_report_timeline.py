"""The timeline of a report: from live arenas, as text, in JSON, and read back."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest

import arena
from arena import UsageError
from arena._report import Report
from arena._report import timeline as _timeline
from arena._report.model import FIGURES, REASONS, Samples

from ..arena.conftest import MIB, MakeArena


def sampled(pool: arena.Arena, heights: tuple[int, ...] = (1, 6, 2)) -> Report:
    with arena.Timeline(pool) as timeline:
        for height in heights:
            buffers = [pool.allocate(2 * MIB) for _ in range(height)]
            timeline.sample()
            buffers.clear()
        return pool.report(timeline=timeline)


def samples_of(live: list[int]) -> Samples:
    """One sample a second, with 1 MiB reserved beyond what is live."""
    points = []
    for second, size in enumerate(live):
        figures = {**dict.fromkeys(FIGURES, 0), "live": size, "requested": size, "reserved": size + MIB}
        points.append((float(second), SimpleNamespace(**figures)))
    made = _timeline.make(points, "s")
    assert made is not None
    return made


def test_a_timeline_of_a_live_arena_becomes_a_part_of_its_report(make: MakeArena) -> None:
    report = sampled(make(cap="64MiB"))
    timeline = report.timeline
    assert timeline is not None
    assert timeline.figures["live"] == [0, 2 * MIB, 12 * MIB, 4 * MIB, 0]  # the last sample is the report's own
    assert (timeline.peak, timeline.unit, timeline.at[0]) == (2, "s", 0)
    assert timeline.at == sorted(timeline.at)
    assert timeline.figures["cap"] == [64 * MIB] * 5
    for index, reserved in enumerate(timeline.figures["reserved"]):
        assert reserved == sum(timeline.figures[name][index] for name in REASONS)
    assert make(cap="64MiB").report().timeline is None


def test_a_timeline_of_another_arena_is_refused(make: MakeArena) -> None:
    pool, other = make(cap="64MiB"), make(cap="64MiB")
    for wrong in (arena.Timeline(other), [1, 2], "timeline"):
        with pytest.raises(UsageError, match=r"timeline=.* is not accepted; give an arena.Timeline of this arena"):
            pool.report(timeline=wrong)  # type: ignore[arg-type]


def test_the_json_of_a_timeline_matches_the_schema_and_is_read_back(make: MakeArena, tmp_path: Path) -> None:
    report = sampled(make(cap="64MiB"))
    schema = json.loads((Path(arena._report.__file__).parent / "report.schema.json").read_text())
    data = json.loads(report.save(tmp_path / "r.json").read_text())
    jsonschema.validate(data, schema)
    assert arena.load(tmp_path / "r.json") == report
    data["timeline"]["peak"] = "high"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema)


def test_older_files_without_a_timeline_are_read(make: MakeArena, tmp_path: Path) -> None:
    data = make(cap="64MiB").report().to_dict()
    del data["timeline"], data["moment"]
    schema = json.loads((Path(arena._report.__file__).parent / "report.schema.json").read_text())
    jsonschema.validate(data, schema)
    assert Report.from_dict(data).timeline is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"peak": 99}, "report.timeline should have one value"),
        ({"at": [0.0]}, "report.timeline should have one value"),
        ({"at": []}, "report.timeline should have one value"),
        ({"figures": {}}, "report.timeline should have one value"),
        ({"unit": 3}, "report.timeline.unit should be str, not 3"),
        ({"more": 3}, "report.timeline should have the fields unit, at, figures, peak"),
    ],
)
def test_a_broken_timeline_is_refused_with_the_reason(make: MakeArena, change: dict[str, object], text: str) -> None:
    data = sampled(make(cap="64MiB")).to_dict()
    data["timeline"].update(change)
    with pytest.raises(UsageError, match=text):
        Report.from_dict(data)


def test_the_text_has_a_chart_that_shows_the_peak_in_its_place(make: MakeArena) -> None:
    shown = str(sampled(make(cap="64MiB")))
    assert "reserved and live bytes over time" in shown
    assert "Live memory peaked at" in shown
    assert ": 12 MiB, " in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_the_chart_draws_live_and_reserved_memory_with_axes_and_the_peak() -> None:
    rows = list(_timeline.chart(samples_of([0, 3 * MIB, 7 * MIB, 3 * MIB]), 57))
    assert rows[0].startswith("8 MiB ┤")
    assert rows[4].startswith("4 MiB ┤")
    top, bottom = rows[0][7:], rows[7][7:]
    assert set(top) == {" ", "░"}  # 7 of 8 are live, and the rest is reserved
    assert top.index("░") == rows[1][7:].index("█") > 0
    assert bottom[0] == "░"  # nothing is live at the start, but something is reserved
    assert bottom[-1] == "█"
    assert rows[8] == "    0 └" + "─" * 50
    assert rows[9].split() == ["0", "µs", "3", "s"]
    assert rows[10].index("▲") == rows[1].index("█")


def test_a_single_sample_is_drawn() -> None:
    rows = list(_timeline.chart(samples_of([7 * MIB]), 40))
    assert (rows[0], rows[1], rows[7]) == ("8 MiB ┤" + "░" * 33, "      │" + "█" * 33, "      │" + "█" * 33)
    assert _timeline.make([], "s") is None


def test_many_samples_are_thinned_without_losing_a_peak() -> None:
    choose = random.Random(2)
    points = [
        (float(i), SimpleNamespace(live=choose.randrange(10**9), reserved=choose.randrange(10**10)))
        for i in range(50_000)
    ]
    kept = _timeline.thin(points)
    assert len(kept) <= 2000
    assert kept == sorted(kept, key=lambda point: point[0])
    assert kept[-1] == points[-1]
    for begin in range(0, 50_000, 1000):  # in every part
        part = points[begin : begin + 1000]
        assert max(part, key=lambda point: point[1].live) in kept
        assert max(part, key=lambda point: point[1].reserved) in kept
        assert min(part, key=lambda point: point[1].live) in kept


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 µs"), (2.5e-5, "25 µs"), (0.25, "250 ms"), (12.34, "12.3 s"), (75, "1 min 15 s"), (7500, "2 h 5 min")],
)
def test_times_are_readable(seconds: float, text: str) -> None:
    assert _timeline.seconds(seconds) == text


def test_a_notebook_shows_the_timeline_without_any_script(make: MakeArena) -> None:
    shown = sampled(make(cap="64MiB"))._repr_html_()
    assert "<svg" in shown
    assert "<script" not in shown
    assert "Live memory peaked at" in shown
