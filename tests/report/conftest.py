"""The arena's fixtures, with the same checks at the end, and a browser that shows reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arena._report import Report

from ..arena.conftest import cu, make
from .browser import Open, Tab, browser

__all__ = ["cu", "make"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


@pytest.fixture
def show(chromium: Any, tmp_path: Path) -> Open:
    def show_one(report: Report, **settings: Any) -> Tab:
        return Tab(chromium, report.save(tmp_path / "report.html", overwrite=True), **settings)

    return show_one
