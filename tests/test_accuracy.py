"""docs/accuracy.md agrees with the measurements that benchmarks/accuracy keeps, and hides none of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tomllib")  # Python 3.11
ROOT = Path(__file__).parent.parent


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of benchmarks/accuracy."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "accuracy"))
    import data
    import page

    yield data, page
    for name in ("data", "page"):
        sys.modules.pop(name, None)


def test_the_page_shows_what_was_measured(accuracy: Any) -> None:
    data, page = accuracy
    shown = (ROOT / "docs" / "accuracy.md").read_text().partition(page.BEGIN)[2].partition(page.END)[0]
    assert shown == page.text_of(data.read_published(), data.read_measured())


def test_every_published_figure_is_measured(accuracy: Any) -> None:
    data, _ = accuracy
    names = [measurement.name for measurement in data.read_published()]
    assert sorted(names) == sorted(data.read_measured())


def test_every_miss_is_explained(accuracy: Any) -> None:
    data, page = accuracy
    measured = data.read_measured()
    rows = [(measurement, measured[measurement.name].size) for measurement in data.read_published()]
    assert not [row[0].name for row in rows if page.is_miss(row) and not row[0].note]


def test_every_program_and_environment_is_there(accuracy: Any) -> None:
    data, _ = accuracy
    environments = data.read_environments()
    for measurement in data.read_published():
        assert measurement.environment in environments
        assert (data.HERE / "programs" / measurement.program.split()[0]).is_file()


def test_a_figure_with_one_digit_is_met_by_what_rounds_to_it(accuracy: Any) -> None:
    data, page = accuracy
    fields = {"name": "", "what": "", "card": "", "versions": "", "program": "", "environment": "", "simulated": ""}
    measurement = data.Measurement(**fields, source=data.Source("", ""), published="6 GB")
    assert not page.is_miss((measurement, 6_400_000_000))
    assert page.is_miss((measurement, 6_600_000_000))


def test_the_readme_has_the_same_figures(accuracy: Any) -> None:
    data, page = accuracy
    measured = data.read_measured()
    rows = [(measurement, measured[measurement.name].size) for measurement in data.read_published()]
    close = sum(not page.is_miss(row) for row in rows)
    same = sum(measurement.agrees(size) for measurement, size in rows)
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"Of [{len(rows)} peaks that others measured" in text
    assert f"dry runs repeat {same} to the last digit, and {close} within 1%:" in text
