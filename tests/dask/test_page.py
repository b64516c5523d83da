"""The page of a cluster in a browser: it shows the report's figures, and makes no requests."""

from __future__ import annotations

import pytest

from arena._dask.build import build
from arena._dask.model import ClusterReport, Missing

from ..report.browser import Open
from .answers import answer, cluster_of
from .tasks import MIB

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202eü漢"


@pytest.fixture
def report() -> ClusterReport:
    return cluster_of(a=answer("a", 16 * MIB), b=answer("b", 60 * MIB, at=102.0), c=answer("c", 8 * MIB))


def test_the_page_shows_the_figures_and_the_moments(report: ClusterReport, show: Open) -> None:
    with show(report) as tab:
        rows = tab.rows("workers")
        assert [row[0].split("tcp")[0] for row in rows] == ["b", "a", "c"]
        assert [row[3] for row in rows] == ["93.8%", "25.0%", "12.5%"]
        account_rows = {row[0]: row for row in tab.rows("account")}
        assert account_rows["= reserved"][1] == f"{report.account['reserved']:,}"
        assert [row[0] for row in tab.rows("lines")][:2] == ["load.py:3 in load", "x.py:1 in f"]
        assert tab.page.text_content("#timeline-when") == "3 s, the peak of live bytes"
        assert tab.page.text_content("[data-figure=live]") == "85 MiB"
        tab.page.focus("#timeline")
        tab.page.keyboard.press("End")
        assert tab.page.text_content("[data-figure=live]") == "84 MiB"
        assert tab.page.locator(".heat svg").count() == 3


@pytest.mark.parametrize(("mode", "width"), [("dark", 1200), ("light", 390)])
def test_the_page_never_scrolls_sideways(report: ClusterReport, show: Open, mode: str, width: int) -> None:
    with show(report, mode=mode, width=width) as tab:
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width


def test_names_on_the_page_are_only_ever_text(show: Open) -> None:
    one = answer(HOSTILE, 4 * MIB)
    one["arenas"][0]["workers"] = []
    one["host"] = HOSTILE
    one["arenas"][0]["device"]["label"] = HOSTILE
    one["arenas"][0]["lines"] = [([(f"/{HOSTILE}.py", 3, HOSTILE)], MIB, 1)]
    one["arenas"][0]["frameworks"] = [(HOSTILE, MIB, 1)]
    missing = [Missing(HOSTILE, HOSTILE, HOSTILE)]
    gone = [{"name": HOSTILE, "address": HOSTILE, "host": HOSTILE, "at": 0.0, "ago": 1.0, "figures": {}}]
    found = build(HOSTILE, {HOSTILE: one}, missing, gone)
    assert "<script>alert" not in found._repr_html_()
    with show(found) as tab:
        assert tab.page.locator("img").count() == 0
        assert HOSTILE in tab.rows("workers")[0][0]
