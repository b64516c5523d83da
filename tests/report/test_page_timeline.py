"""The timeline on the page, in a browser: it shows the report's figures and works with pointer and keys."""

from __future__ import annotations

import dataclasses

import pytest

from arena import Trace
from arena._report import Report
from arena._report.model import FIGURES
from arena._util.sizes import format_size

from ..programs import ROOT
from .browser import Open, Tab, contrast


@pytest.fixture(scope="module")
def report() -> Report:
    return Trace.read(ROOT / "benchmarks/traces/science.csv.gz").replay(device="sim:8GiB", cap="600MiB").report


@pytest.fixture(scope="module")
def misfit() -> Report:
    return Trace.read(ROOT / "benchmarks/traces/server.csv.gz").replay(device="sim:8GiB", cap="300MiB").report


def figures(tab: Tab) -> dict[str, str]:
    found: dict[str, str] = tab.page.evaluate(
        """Object.fromEntries([...document.querySelectorAll("[data-figure]")]
            .map(place => [place.dataset.figure, place.textContent]))"""
    )
    return found


def expected(report: Report, index: int) -> dict[str, str]:
    assert report.timeline is not None
    return {name: format_size(report.timeline.figures[name][index]) for name in FIGURES}


def when(tab: Tab) -> str:
    return str(tab.page.inner_text("#timeline-when"))


def test_the_timeline_shows_the_peak_first_and_says_so(report: Report, show: Open) -> None:
    assert report.timeline is not None
    peak = report.timeline.peak
    with show(report) as tab:
        assert figures(tab) == expected(report, peak)
        assert when(tab) == f"event {round(report.timeline.at[peak]):,}, the peak of live bytes"
        assert tab.page.inner_text("#timeline-about").startswith("Live memory peaked at event ")
        assert tab.page.inner_text(".moment") == report.moment
        assert report.account["live"] == report.timeline.figures["live"][peak]


def test_pointing_at_a_moment_shows_its_figures(report: Report, show: Open) -> None:
    assert report.timeline is not None
    at = report.timeline.at
    index = max(range(len(at) - 1), key=lambda i: at[i + 1] - at[i])  # the value that lasts longest
    with show(report) as tab:
        tab.bring("#timeline")
        x = tab.page.evaluate("i => (arenaPage.timelineX(i) + arenaPage.timelineX(i + 1)) / 2", index)
        box = tab.page.locator("#timeline").bounding_box()
        tab.page.mouse.move(x, box["y"] + 100)
        assert figures(tab) == expected(report, index)
        assert when(tab).startswith(f"event {round(at[index]):,}")


def test_the_keyboard_moves_from_sample_to_sample(report: Report, show: Open) -> None:
    assert report.timeline is not None
    end = len(report.timeline.at) - 1
    with show(report) as tab:
        for _ in range(20):
            tab.page.keyboard.press("Tab")
            if tab.page.evaluate("document.activeElement.id") == "timeline":
                break
        assert tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        pressed = {"Home": 0, "ArrowRight": 1, "PageDown": 21, "ArrowLeft": 20, "End": end, "p": report.timeline.peak}
        for key, index in pressed.items():
            tab.page.keyboard.press(key)
            assert figures(tab) == expected(report, index), key
        assert tab.page.get_attribute("#timeline-details", "aria-live") == "polite"


def test_the_failure_is_marked(misfit: Report, show: Open) -> None:
    assert misfit.timeline is not None
    with show(misfit) as tab:
        assert when(tab) == f"event {round(misfit.timeline.at[-1]):,}, where the request failed"
        assert "The request failed at event" in tab.page.inner_text("#timeline-about")
        assert tab.page.inner_text(".verdict").startswith("A request of ")
        assert figures(tab) == expected(misfit, -1)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_the_timeline_uses_the_colours_of_the_mode(mode: str, report: Report, show: Open) -> None:
    """Requested bytes are at the bottom, at every moment that is visible at all."""
    assert report.timeline is not None
    peak = report.timeline.peak
    with show(report, mode=mode) as tab:
        tab.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        pixel = tab.page.evaluate(
            """i => {
                const canvas = document.querySelector("#timeline canvas"), left = canvas.getBoundingClientRect().left;
                const x = Math.round(arenaPage.timelineX(i) - left) + 3;
                return [...canvas.getContext("2d").getImageData(x, canvas.height - 30, 1, 1).data].slice(0, 3);
            }""",
            peak,
        )
        colour = tab.page.evaluate("getComputedStyle(document.body).getPropertyValue('--requested')").strip()
        assert pixel == [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        page = tab.colour("body", "backgroundColor")
        for selector in ("#timeline-about", "#timeline-help", ".moment"):
            assert contrast(tab.colour(selector, "color"), page) >= 4.5
        panel = tab.colour("#timeline-details", "backgroundColor")
        assert contrast(tab.colour("#timeline-details dt", "color"), panel) >= 4.5


def test_the_timeline_follows_a_change_of_mode_or_width(report: Report, show: Open) -> None:
    picture = "document.querySelector('#timeline canvas').toDataURL()"
    with show(report) as tab:
        tab.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        light = tab.page.evaluate(picture)
        tab.page.emulate_media(color_scheme="dark")
        tab.page.wait_for_function(f"light => {picture} !== light", arg=light)
        tab.page.set_viewport_size({"width": 400, "height": 900})
        tab.page.wait_for_function("() => document.querySelector('#timeline canvas').width < 400")
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 400


def test_the_table_below_the_timeline_has_the_peak(report: Report, show: Open) -> None:
    with show(report) as tab:
        rows = tab.rows("timeline")
        assert 20 < len(rows) <= 62
        assert f"{report.account['live']:,}" in [row[2] for row in rows]


def test_without_samples_there_is_no_timeline(report: Report, show: Open) -> None:
    with show(dataclasses.replace(report, timeline=None, moment="")) as tab:
        assert tab.page.locator("#timeline, .moment").count() == 0


def test_a_page_with_a_timeline_opens_in_under_2_seconds(report: Report, show: Open) -> None:
    assert report.timeline is not None
    assert len(report.timeline.at) > 1000
    with show(report) as tab:
        assert int(tab.page.get_attribute("html", "data-drawn") or "") < 2000


def test_names_in_the_moment_are_only_ever_text(report: Report, show: Open) -> None:
    hostile = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202eü漢"
    with show(dataclasses.replace(report, moment=hostile)) as tab:
        assert tab.page.inner_text(".moment") == hostile
        assert tab.page.locator("main img").count() == 0
