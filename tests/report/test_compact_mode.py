"""What snapshots, reports and metrics say about moving live data: which mode is in force, and what passes in each."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

import arena
from arena import Report, UsageError

from ..arena.conftest import MIB, MakeArena
from ..arena.test_safe_point import LARGE
from ..threads import thread_in_native_code
from .browser import Open

WITHOUT = "The largest request that would pass is 6 MiB without moving live data, 48 MiB with moving."
WITH = "The largest request that would pass is 48 MiB with moving live data, 6 MiB without moving."
THREADS = 'live data may not be moved: another thread may launch work (compact="auto")'
OFF = "live data may not be moved: compact=False"
BY_MOVING = ("without_moving", "with_moving")


def stranded(make: MakeArena, **settings: Any) -> tuple[arena.Arena, list[arena.Buffer]]:
    """An arena at its cap with three quarters stranded, and the blocks that strand them."""
    pool = make(cap="64MiB", growth="16MiB", reserve="64MiB", **settings)
    blocks = [pool.allocate(2 * MIB) for _ in range(32)]
    return pool, blocks[::4]


@pytest.mark.parametrize(
    ("compact", "moving", "words", "caption"),
    [
        (True, "allowed", "live data may be moved", WITH),
        (False, "switched off", OFF, WITHOUT),
        ("auto", "other threads", THREADS, WITHOUT),
    ],
    ids=["compact=True", "compact=False", "auto"],
)
def test_text_page_notebook_and_json_say_which_mode_is_in_force(
    make: MakeArena, compact: bool | str, moving: str, words: str, caption: str
) -> None:
    pool, kept = stranded(make, compact=compact)
    with thread_in_native_code():
        report, stats = pool.report(), pool.stats()
    assert report.moving == moving
    assert report.largest["now"] == stats.largest == (48 if moving == "allowed" else 6) * MIB
    assert [report.largest[name] for name in BY_MOVING] == [6 * MIB, 48 * MIB]
    assert (stats.largest_without_moving, stats.largest_with_moving) == (6 * MIB, 48 * MIB)
    assert report.caption.endswith(caption)
    text = str(report)
    assert f"  without moving live data: 6 MiB; with moving: 48 MiB\n  {words}\n" in text
    assert max(map(len, text.splitlines())) <= 80
    assert caption in report._repr_html_()
    data = json.loads(json.dumps(report.to_dict()))
    assert (data["moving"], data["largest"]) == (moving, report.largest)
    assert Report.from_dict(data) == report
    kept.clear()


def test_moving_is_not_mentioned_where_it_makes_no_difference(make: MakeArena) -> None:
    report = make(cap="64MiB", compact=False).report()
    assert report.moving == "switched off"
    assert [report.largest[name] for name in BY_MOVING] == [64 * MIB, 64 * MIB]
    assert report.caption == "Nothing is reserved."
    assert "moving" not in str(report)


def test_plain_segments_are_called_that(make: MakeArena) -> None:
    pool = make(cap="64MiB", vmm=False, compact=True)
    kept = pool.allocate(MIB)
    assert (pool.snapshot().moving, pool.report().moving) == ("plain segments", "plain segments")
    assert pool.report().largest["with_moving"] == pool.report().largest["without_moving"] == pool.stats().largest
    kept.free()


def test_the_page_shows_the_mode_in_the_tile_and_below_the_table(make: MakeArena, show: Open) -> None:
    pool, kept = stranded(make, compact=False)
    with show(pool.report()) as tab:
        assert [row[0] for row in tab.rows("largest")][2:] == ["without moving live data", "with moving live data"]
        assert tab.page.inner_text(".moving") == f"L{OFF[1:]}."
        assert "would pass now, without moving live data" in tab.page.inner_text(".tiles")
        assert WITHOUT in tab.page.inner_text("body")
    kept.clear()


@pytest.mark.parametrize(("compact", "words"), [(False, OFF), ("auto", THREADS)])
def test_the_report_of_a_failed_request_says_how_to_allow_moving(
    make: MakeArena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compact: bool | str, words: str
) -> None:
    monkeypatch.setenv("ARENA_OOM_DIR", str(tmp_path))
    pool, kept = stranded(make, compact=compact)
    with thread_in_native_code(), pytest.raises(arena.OutOfMemoryError) as caught:
        pool.allocate(LARGE)
    (path,) = (path for path in tmp_path.glob("*.json") if ".snapshot" not in path.name)
    report = arena.load(path)
    why, advice = caught.value._advice()
    assert isinstance(report, Report)
    assert (report.why, report.notes) == (why, [advice.removeprefix("Next: ")])
    shown = " ".join(str(report).split())
    assert f"{caught.value.line} failed: re-backing not allowed. L{words[1:]}. Moving it would have freed" in shown
    assert advice in shown
    kept.clear()


def test_moving_is_not_advised_in_the_report_of_a_request_that_is_too_large(make: MakeArena) -> None:
    pool, kept = stranded(make, compact=False)
    with pytest.raises(arena.OutOfMemoryError) as caught:
        pool.allocate(60 * MIB)
    report = pool.report(verdict=caught.value.verdict, request=60 * MIB)
    assert not any("oving" in note for note in report.notes)
    kept.clear()


def test_metrics_include_both_modes(make: MakeArena) -> None:
    pool, kept = stranded(make, compact=False)
    found = {family.name: family.samples[0].value for family in parse(pool.metrics())}
    assert found["arena_largest_request_bytes"] == 6 * MIB
    assert found["arena_largest_request_without_moving_bytes"] == 6 * MIB
    assert found["arena_largest_request_with_moving_bytes"] == 48 * MIB
    kept.clear()


def drop_from_snapshot(data: dict[str, Any]) -> None:
    """A snapshot from before modes existed."""
    del data["moving"]
    for name in BY_MOVING:
        del data["stats"][f"largest_{name}"]


def drop_from_report(data: dict[str, Any]) -> None:
    del data["moving"]
    for name in BY_MOVING:
        del data["largest"][name]


@pytest.mark.parametrize("kind", ["snapshot", "report"])
def test_older_files_without_modes_say_nothing_about_them(make: MakeArena, tmp_path: Path, kind: str) -> None:
    pool, kept = stranded(make, compact=False)
    path = getattr(pool, kind)().save(tmp_path / "old.json")
    drop: Callable[[dict[str, Any]], None] = {"snapshot": drop_from_snapshot, "report": drop_from_report}[kind]
    data = json.loads(path.read_text())
    drop(data)
    path.write_text(json.dumps(data))
    loaded = arena.load(path)
    report = Report.of(loaded) if isinstance(loaded, arena.Snapshot) else loaded
    assert isinstance(report, Report)
    assert (report.moving, set(report.largest)) == ("", {"now", "after_trim"})
    text = str(dataclasses.replace(report, verdict="cap reached", request=MIB))
    assert "A request of 1 MiB failed: cap reached.\n" in text
    assert "without moving live data:" not in text
    assert report._repr_html_().count("moving") == report.caption.count("moving")
    report.save(tmp_path / "old.html")
    kept.clear()


@pytest.mark.parametrize("kind", ["snapshot", "report"])
def test_an_unknown_mode_is_refused(make: MakeArena, tmp_path: Path, kind: str) -> None:
    path = getattr(make(cap="64MiB"), kind)().save(tmp_path / "odd.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "moving": "<b>sometimes</b>"}))
    with pytest.raises(
        UsageError, match=rf"{kind}\.moving should be one of allowed, switched off, other threads, plain"
    ):
        arena.load(path)


def test_a_replay_reports_its_own_mode(make: MakeArena, tmp_path: Path) -> None:
    pool, settings = make(cap="128MiB"), {"cap": "64MiB", "growth": "16MiB", "reserve": "64MiB"}
    with pool.record(tmp_path / "run.arena"):
        blocks = [pool.allocate(2 * MIB) for _ in range(32)]
        kept = blocks[::4]
        blocks.clear()
        pool.allocate(LARGE).free()
    kept.clear()
    trace = arena.Trace.read(tmp_path / "run.arena")
    with thread_in_native_code():  # which is not the recorded program's
        played = {compact: trace.replay(**settings, compact=compact) for compact in ("auto", False)}
    assert (played["auto"].fits, played["auto"].end.moving) == (True, "allowed")
    error = played[False].error
    assert error is not None
    assert (error.moving, played[False].end.moving) == ("switched off", "switched off")
    assert error.set_free_by_moving > 0
    assert "compact=False" in str(error)
