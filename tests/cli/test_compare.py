"""Replays side by side: in a terminal, as JSON, and as a page in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import arena
from arena import Trace, UsageError
from arena._analysis.compare.text import CHART_WIDTH, binned

from ..programs import ROOT
from ..report.browser import Tab, browser, contrast
from .command import run_arena

PIPELINE, VGG = (ROOT / f"benchmarks/traces/{name}.csv.gz" for name in ("pipeline", "vgg"))
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'&.arena"


def test_two_caps_are_shown_side_by_side() -> None:
    done = run_arena("replay", PIPELINE, "--compare", "--cap", "420MiB", "--cap", "480MiB")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    rows = {line[:20].strip(): line[20:].split() for line in done.stdout.splitlines()}
    assert rows["fits"] == ["yes", "yes"]
    assert rows["peak live"] == ["395.99", "MiB", "395.99", "MiB"]
    alone = json.loads(run_arena("replay", PIPELINE, "--cap", "480MiB", "--json").stdout)
    reserved = alone["stats"]["peak_reserved"] / (1 << 20)
    assert 420 < reserved <= 480
    more = f"+{100 * (reserved / 420 - 1):.1f}"
    assert rows["peak reserved"] == ["420", "MiB", "*", f"{reserved:g}", "MiB", more, "%"]
    assert rows["driver calls"][1] == f"{alone['stats']['driver_calls']:,}"
    less = f"420 MiB, {100 * (1 - 420 / reserved):.0f} % less than B ({reserved:g} MiB)."
    assert f"A reserves the least at its peak: {less}" in done.stdout.replace("\n", " ")
    assert done.stdout.count("─" * 66) == 2


def test_two_traces_one_of_which_does_not_fit() -> None:
    done = run_arena("replay", "--compare", PIPELINE, VGG, "--cap", "480MiB", "--json")
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert not found["fits"]
    one, other = found["runs"]
    assert (one["letter"], one["name"], one["fits"], one["events"]) == ("A", "pipeline.csv.gz", True, one["of"])
    assert (other["name"], other["fits"], other["verdict"]) == ("vgg.csv.gz", False, "cap reached")
    assert found["caption"].startswith("Only A fits. B stopped: event ")
    shown = run_arena("replay", PIPELINE, VGG, "--cap", "480MiB")  # the names of the traces say it already
    assert shown.returncode == 3
    assert "stopped: event 294 of 22,374, a request of 64 MiB: cap reached" in shown.stdout
    rows = {line[:20].strip(): line[20:].split() for line in shown.stdout.splitlines()}
    assert "*" not in rows["peak reserved"]  # only one fits, so there is nothing to compare it with
    assert "%" not in rows["peak reserved"]


def test_virtual_memory_and_plain_segments(tmp_path: Path) -> None:
    done = run_arena("replay", PIPELINE, "--plain", "--vmm", "--save", tmp_path / "c.json")
    assert done.stdout.endswith(f"wrote {tmp_path / 'c.json'}\nNext: run it again with --save compare.html\n")
    runs = json.loads((tmp_path / "c.json").read_text())["runs"]
    assert [run["name"] for run in runs] == ["virtual memory", "plain"]
    assert [run["settings"]["vmm"] for run in runs] == [True, False]
    assert runs[1]["stats"]["peak_reserved"] > runs[0]["stats"]["peak_reserved"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--compare",), "there is nothing to compare; give two traces, or two values of a setting"),
        (("--compare", "--cap", "1GiB"), "there is nothing to compare"),
        (("--cap", "1GiB") + ("--growth", "2MiB") * 5, "5 runs do not fit side by side; the limit is 4"),
        (("/nowhere",), "/nowhere cannot be read"),
        (("--cap", "1GiB", "--cap", "lots"), "cap='lots' is not a size"),
        (("--cap", "1GiB", "--cap", "2GiB", "--save", "x.pdf"), "'x.pdf' does not end with .html or .json or .txt"),
    ],
)
def test_invalid_comparisons_are_refused_in_one_line(arguments: tuple[str, ...], text: str) -> None:
    done = run_arena("replay", PIPELINE, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_compare_works_from_python(tmp_path: Path) -> None:
    trace = Trace.read(VGG)
    found = arena.compare(trace, cap=["600MiB", "1200MiB"], device="sim:8GiB")
    assert [run.done.fits for run in found.runs] == [False, True]
    assert not found.fits
    assert found.runs[1].done.peak_reserved <= 1200 << 20
    assert str(found) == found.save(tmp_path / "c.txt").read_text()
    assert found.axis == "events"  # the text format has no times
    with pytest.raises(UsageError, match="nothing to compare"):
        arena.compare(trace, cap=["1GiB"])
    with pytest.raises(UsageError, match="exists"):
        found.save(tmp_path / "c.txt")
    same = arena.compare(trace, trace, device="sim:8GiB")
    assert same.caption.startswith("Both fit. Both reserve the same at their peaks: ")
    neither = arena.compare(trace, cap=["100MiB", "200MiB"])
    assert neither.caption.startswith("Neither fits. A stopped: ")


def test_a_column_of_the_chart_shows_its_highest_peak() -> None:
    found = arena.compare(Trace.read(VGG), cap=["600MiB", "1200MiB"], device="sim:8GiB")
    stopped, whole = (binned(run, found) for run in found.runs)
    points = found.runs[1].points
    assert max(live for live, _ in whole) == max(point.live for point in points)
    assert (len(whole), len(stopped) < len(whole)) == (CHART_WIDTH, True)  # it ends where the trace did not fit


def test_the_chart_shows_a_value_until_it_changes(tmp_path: Path) -> None:
    trace = tmp_path / "run.trace"
    trace.write_text("# arena-trace 1\n" + "a,0,8388608,0\nf,0\n" + "a,1,0,0\nf,1\n" * 2000)
    found = arena.compare(trace, cap=["16MiB", "32MiB"])
    columns = binned(found.runs[0], found)
    assert [live for live, _ in columns if live >= 8 << 20] == [8 << 20]  # for a moment, and no longer


def test_traces_with_the_same_name_are_distinguished_and_an_empty_one_is_no_error(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.trace").write_text("# arena-trace 1\n")
    found = arena.compare(tmp_path / "one/run.trace", tmp_path / "two/run.trace")
    assert [run.name for run in found.runs] == [str(tmp_path / "one/run.trace"), str(tmp_path / "two/run.trace")]
    assert found.fits
    assert str(found)
    assert found.save(tmp_path / "c.html").exists()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two recordings, one with a hostile name; the second does not fit."""
    folder = tmp_path_factory.mktemp("compare")
    for name, count in (("small.arena", 20), (HOSTILE.replace("/", "\u2215"), 60)):
        with arena.Arena(device="sim:1GiB") as pool, pool.record(folder / name):
            kept = [pool.allocate(3 << 20) for _ in range(count)]
            kept.clear()
    found = arena.compare(folder / "small.arena", folder / HOSTILE.replace("/", "\u2215"), cap="96MiB")
    return found.save(folder / "compare.html")


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_the_page_shows_every_run_and_makes_no_requests(chromium: Any, page: Path, mode: str, width: int) -> None:
    with Tab(chromium, page, mode=mode, width=width) as tab:  # notices errors, requests and dialogs
        assert (tab.page.locator("#lines .run").count(), tab.page.locator("#lines .cross").count()) == (4, 1)
        assert tab.page.locator("#lines .letter").all_text_contents() == ["A", "B"]
        assert page.stat().st_size < 2_000_000
        assert "Only A fits. B stopped: event " in tab.page.inner_text("#caption")
        assert HOSTILE.replace("/", "\u2215") in tab.page.inner_text(".runs")
        rows = {row[0]: row[1:] for row in tab.rows("compared")}
        assert rows["fits"] == ["yes", "no"]
        assert rows["peak live"][0].strip() == "60 MiB"
        assert contrast(tab.colour(".change", "color"), tab.colour("body", "backgroundColor")) >= 4.5
        assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_page_can_be_drawn_over_time_or_events(chromium: Any, page: Path) -> None:
    with Tab(chromium, page) as tab:
        title, ticks = tab.page.locator("#lines .xtitle"), tab.page.locator("#lines .xtick")
        assert title.text_content() == "share of the events"  # two traces
        assert ticks.last.text_content() == "100 %"
        tab.page.check("input[value=seconds]")
        assert title.text_content() == "seconds of the recorded run"
        assert 0 < float(ticks.last.text_content() or "") < 60


def test_pointer_and_keys_show_the_figures_of_a_moment(chromium: Any, page: Path) -> None:
    with Tab(chromium, page) as tab:
        assert not tab.page.is_visible("#lines-details")
        box = tab.page.locator("#lines").bounding_box()
        tab.page.mouse.move(box["x"] + box["width"] - 30, box["y"] + 200)
        assert "B: ended before" in tab.page.inner_text("#lines-details")
        assert re.search(r"A: [0-9.]+ (MiB|B) live, [0-9.]+ MiB reserved", tab.page.inner_text("#lines-details"))
        before = tab.page.inner_text("#lines-details b")
        tab.page.focus("#lines")
        tab.page.keyboard.press("ArrowLeft")
        assert tab.page.inner_text("#lines-details b") != before


def test_unknown_times_cannot_be_chosen(chromium: Any, tmp_path: Path) -> None:
    found = arena.compare(VGG, cap=["1100MiB", "1200MiB"])
    with Tab(chromium, found.save(tmp_path / "c.html")) as tab:
        assert tab.page.is_disabled("input[value=seconds]")
        assert tab.page.is_checked("input[value=share]")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "Live data may be moved, as in single-threaded programs."),
        (("--no-compact",), "Live data is never moved."),
    ],
)
def test_a_comparison_says_what_it_assumed_about_moving(options: tuple[str, ...], words: str) -> None:
    done = run_arena("replay", PIPELINE, "--cap", "480MiB", "--cap", "500MiB", *options)
    assert words in " ".join(done.stdout.split())
    both = run_arena("replay", PIPELINE, "--cap", "480MiB", "--compact", "--no-compact")
    assert "with moving live data\n" in both.stdout
    assert "Live data" not in both.stdout
