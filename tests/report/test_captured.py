"""Memory kept by captured graphs: every report, file and metric includes it, and says how to release it.

The snapshots are hand-made: two handles, a live block, and what a graph keeps beside it.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import arena
from arena import OutOfMemoryError, Report, Snapshot, UsageError
from arena._export import perfetto, prometheus, torch
from arena._inspect.snapshot import _PEAK, _STATS, Handle, Piece, Segment
from arena._report import html, timeline
from arena._words.account import REASONS

from .browser import Open

MIB = 1 << 20
BASE = 1 << 40
GRAPHS = "Captured CUDA graphs keep 5 MiB"
RELEASE = "memory.release() from `with pool.graph() as memory:`, or pool.release_graphs()"


def piece(offset: int, size: int, state: str) -> Piece:
    live = state == "live"
    return Piece(BASE + offset, size, state, size if live else 0, 0, 0, "", False, (), 0.5 if live else None)


def figures(names: list[str], **known: int) -> dict[str, int]:
    return {**dict.fromkeys(names, 0), **known}


def make_snapshot() -> Snapshot:
    """A 4 MiB handle with a live block, captured and stranded bytes, and another that a graph keeps whole."""
    account = {
        "requested": MIB,
        "live": MIB,
        "reserved": 8 * MIB,
        "captured": 5 * MIB,
        "stranded": 2 * MIB,
        "cap": 16 * MIB,
        "device_total": 64 * MIB,
        "device_free": 56 * MIB,
        "blocks": 1,
    }
    return Snapshot(
        device=0,
        arena="1-1",
        plain=False,
        may_move=False,
        granule=2 * MIB,
        stats=figures(_STATS, **account),
        segments=[Segment(BASE, 8 * MIB)],
        handles=[Handle(BASE, 4 * MIB), Handle(BASE + 4 * MIB, 4 * MIB)],
        pieces=[
            piece(0, MIB, "live"),
            piece(MIB, MIB, "stranded"),
            piece(2 * MIB, MIB, "stranded"),
            piece(3 * MIB, MIB, "captured"),
            piece(4 * MIB, 4 * MIB, "captured"),
        ],
        largest_free=2 * MIB,
        peak=figures(_PEAK, **{name: value for name, value in account.items() if name in _PEAK}, largest_free=2 * MIB),
        next_serial=1,
    )


@pytest.fixture
def snapshot() -> Snapshot:
    return make_snapshot()


def test_the_core_counts_captured_memory() -> None:
    assert "captured" in _STATS
    with arena.Arena(device="sim:1GiB", cap="64MiB") as pool:
        assert pool.stats().captured == 0


def test_a_report_counts_captured_bytes_as_one_of_the_reasons(snapshot: Snapshot) -> None:
    report = Report.of(snapshot)
    assert sum(report.account[name] for name in REASONS) == report.account["reserved"] == 8 * MIB
    assert report.account["captured"] == report.peak["captured"] == 5 * MIB
    assert sum(size.bytes for size in report.free_sizes) == 7 * MIB
    assert report.caption.startswith("8 MiB of a cap of 16 MiB")
    assert "captured: freed, but kept for a captured CUDA graph" in report.caption


def test_the_map_shows_a_granule_as_captured_even_where_other_bytes_of_it_are_free(snapshot: Snapshot) -> None:
    (segment,) = Report.of(snapshot).segments
    assert [(cell.first, cell.count, cell.state) for cell in segment.cells] == [(0, 1, "live"), (1, 3, "captured")]


def test_fragmentation_leaves_out_what_graphs_keep(snapshot: Snapshot) -> None:
    now = Report.of(snapshot).fragmentation["now"]
    assert (now.external, now.contiguous) == (1.0, 0.0)  # of 2 MiB free, in one piece


def test_a_live_block_does_not_block_a_handle_that_a_graph_keeps_too(snapshot: Snapshot) -> None:
    (pin,) = Report.of(snapshot).pins
    assert (pin.address, pin.holds_back) == (BASE, MIB)  # of its granule; without it, the handle would stay as well
    pieces = [p._replace(state="stranded") if p.address == BASE + 3 * MIB else p for p in snapshot.pieces]
    (pin,) = Report.of(dataclasses.replace(snapshot, pieces=pieces)).pins
    assert pin.holds_back == 3 * MIB


def test_text_page_and_notebook_show_captured_memory_and_how_to_release_it(snapshot: Snapshot) -> None:
    report = Report.of(snapshot)
    text = str(report)
    assert "◆ captured     5,242,880  62%  freed, but kept for a captured CUDA graph" in text
    assert "█◆◆◆" in text
    assert f"Next: {GRAPHS}" in text
    assert RELEASE in " ".join(text.split())
    for shown in (html.render(report), html.render_inline(report)):
        assert "captured 5 MiB" in shown
        assert GRAPHS in shown


def test_graphs_that_keep_little_are_not_mentioned(snapshot: Snapshot) -> None:
    stats = {**snapshot.stats, "captured": MIB, "stranded": 6 * MIB}
    assert not any("graphs" in note for note in Report.of(dataclasses.replace(snapshot, stats=stats)).notes)


def test_saved_snapshots_and_reports_keep_captured_memory(snapshot: Snapshot, tmp_path: Path) -> None:
    assert arena.load(snapshot.save(tmp_path / "snapshot.json")) == snapshot
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot
    report = Report.of(snapshot, timeline=sampled(snapshot))
    assert arena.load(report.save(tmp_path / "report.json")) == report


def test_captured_bytes_are_part_of_the_checked_sum(snapshot: Snapshot, tmp_path: Path) -> None:
    wrong = dataclasses.replace(snapshot, stats={**snapshot.stats, "captured": 0})
    with pytest.raises(UsageError, match="does not add up"):
        arena.load(wrong.save(tmp_path / "wrong.json"))


def sampled(snapshot: Snapshot) -> Any:
    none = {**snapshot.stats, **dict.fromkeys(REASONS, 0), "live": 0, "reserved": 0}
    points: list[timeline.Point] = [(0.0, SimpleNamespace(**none)), (1.0, SimpleNamespace(**snapshot.stats))]
    return timeline.make(points, "s")


def without_it(data: Any) -> Any:
    """A file from before this reason existed."""
    if isinstance(data, dict):
        return {name: without_it(value) for name, value in data.items() if name != "captured"}
    return [without_it(item) for item in data] if isinstance(data, list) else data


def test_older_files_have_no_captured_memory(snapshot: Snapshot, tmp_path: Path) -> None:
    stats = {**snapshot.stats, "captured": 0, "stranded": 7 * MIB}
    pieces = [p if p.state == "live" else p._replace(state="stranded") for p in snapshot.pieces]
    peak = {**snapshot.peak, "captured": 0, "stranded": 7 * MIB}
    snapshot = dataclasses.replace(snapshot, stats=stats, peak=peak, pieces=pieces)
    report = Report.of(snapshot, timeline=sampled(snapshot))
    for number, saved in enumerate((snapshot, report)):
        path = saved.save(tmp_path / f"{number}.json")
        old = without_it(json.loads(path.read_text()))
        assert "captured" not in json.dumps(old)
        path.write_text(json.dumps(old))
        assert arena.load(path) == saved
        html.render(report)


def test_metrics_have_captured_memory_as_a_reason_and_as_a_gauge(snapshot: Snapshot) -> None:
    text = prometheus.render([({"device": "0"}, snapshot.stats, {})])
    assert 'arena_reserved_bytes{device="0",reason="captured"} 5242880\n' in text
    assert '# TYPE arena_captured_bytes gauge\narena_captured_bytes{device="0"} 5242880\n' in text


def test_counters_for_perfetto_include_captured_memory(snapshot: Snapshot) -> None:
    events = list(perfetto.events([(0.0, snapshot.stats)], name="arena", pid=1))
    (reserved,) = (event["args"] for event in events if event["name"] == "reserved")
    assert reserved["captured"] == 5 * MIB
    assert sum(reserved.values()) == 8 * MIB


def test_pytorchs_viewer_shows_captured_memory_as_freed_but_not_reusable(snapshot: Snapshot) -> None:
    (segment,) = torch.convert(snapshot)["segments"]
    assert [(block["size"], block["state"]) for block in segment["blocks"]] == [
        (MIB, "active_allocated"),
        (2 * MIB, "inactive"),
        (5 * MIB, "active_pending_free"),
    ]
    assert segment["active_size"] == 6 * MIB


def failed(snapshot: Snapshot, requested: int, verdict: str = "cap reached") -> OutOfMemoryError:
    return OutOfMemoryError("out of memory", verdict, requested, 8 * MIB, snapshot.stats)


def last_lines(error: OutOfMemoryError) -> list[str]:
    return [line for line in str(error).splitlines() if line.startswith(("Next: ", "Also: "))]


def test_an_error_says_to_release_graphs_if_that_makes_room(snapshot: Snapshot) -> None:
    for verdict in ("cap reached", "device full", "headroom kept"):
        error = failed(snapshot, 12 * MIB, verdict)
        assert "  captured          5,242,880  freed, but kept for a captured CUDA graph" in str(error).splitlines()
        (line,) = last_lines(error)
        assert line.startswith("Next: captured CUDA graphs keep 5,242,880 bytes")
        assert RELEASE in line


def test_an_error_mentions_graphs_that_keep_much_even_if_releasing_is_not_enough(snapshot: Snapshot) -> None:
    first, second = last_lines(failed(snapshot, 100 * MIB))
    assert first == "Next: raise the cap with set_cap(), or free something first."
    assert second.startswith("Also: captured CUDA graphs keep")


@pytest.mark.parametrize("verdict", ["a stream is being captured", "memory is on its way", "budget of scope x reached"])
def test_an_error_does_not_mention_graphs_where_something_else_is_the_cause(snapshot: Snapshot, verdict: str) -> None:
    (line,) = last_lines(failed(snapshot, 12 * MIB, verdict))
    assert "graphs" not in line


def test_an_older_error_without_captured_memory_can_be_read(snapshot: Snapshot) -> None:
    error = OutOfMemoryError("out of memory", "cap reached", 12 * MIB, 8 * MIB, without_it(snapshot.stats))
    assert "captured" not in str(error)
    assert len(last_lines(error)) == 1


def test_the_page_draws_and_labels_captured_memory(snapshot: Snapshot, show: Open) -> None:
    report = Report.of(snapshot, timeline=sampled(snapshot))
    with show(report) as tab:
        assert "captured" in tab.page.inner_text(".legend")
        assert {row[0]: row[1] for row in tab.rows("account")}["captured"] == "5,242,880"
        tab.bring("#map")
        place = tab.place_of(4)
        tab.page.mouse.move(place["x"], place["y"])
        assert tab.block("#map-tip")["State"] == "captured: freed, but kept for a captured CUDA graph"
        tab.bring("#timeline")
        assert tab.page.inner_text("#timeline-details [data-figure=captured]") in ("5 MiB", "0 B")
