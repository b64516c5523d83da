"""Renders a comparison as a self-contained page: text, a table, and one chart with live and reserved bytes of all runs.

Names of files are untrusted: they go through ``text`` into the table; the chart identifies runs by their letters.
"""

from __future__ import annotations

from typing import Any

from ..._report.page import file_of, fill
from ..._report.parts import text
from .model import FIGURES, Cell, Comparison, Run

__all__ = ["render"]

COLOURS = ("requested", "stranded", "releasable", "pending")  # of the style sheet


def render(found: Comparison) -> str:
    """The whole page."""
    return fill(
        file_of(__package__, "compare.html"),
        {"lines": file_of(__package__, "compare.js")},
        _chart_data(found),
        title=text(f"arena: {' and '.join(run.name for run in found.runs)}"),
        caption=text(found.caption),
        legend="\n".join(_entry(number, run) for number, run in enumerate(found.runs)),
        head="".join(f'<th scope="col">{run.letter}</th>' for run in found.runs),
        base=found.base.letter if found.base else "A",
        rows=_rows(found),
        time="checked" if found.axis == "time" else "",
        events="checked" if found.axis == "events" else "",
        timed="" if all(run.trace.timed for run in found.runs) else "disabled",
    )


def _entry(number: int, run: Run) -> str:
    chip = f'<span class="chip" style="background:var(--{COLOURS[number]})"></span>'
    return f"<li>{chip}<b>{run.letter}</b> {text(run.name)}</li>"


def _rows(found: Comparison) -> str:
    fits = "".join(f"<td>{run.verdict}</td>" for run in found.runs)
    rows = [f'<tr><th scope="row">fits</th>{fits}</tr>']
    for figure in FIGURES:
        cells = "".join(_cell(cell) for cell in found.row(figure))
        rows.append(f'<tr><th scope="row">{text(figure.title)}</th>{cells}</tr>')
    return "\n".join(rows)


def _cell(cell: Cell) -> str:
    value = f"<b>{text(cell.text)} ✓</b>" if cell.best else f"<span>{text(cell.text)}</span>"
    return f'<td>{value} <span class="change">{text(cell.change)}</span></td>'


def _chart_data(found: Comparison) -> dict[str, Any]:
    return {
        "runs": [
            {
                "letter": run.letter,
                "colour": COLOURS[number],
                "fits": run.is_whole,  # otherwise a cross marks where it stopped
                "seconds": [round(point.seconds, 6) for point in run.points],
                "share": [round(point.share, 6) for point in run.points],
                "live": [point.live for point in run.points],
                "reserved": [point.reserved for point in run.points],
            }
            for number, run in enumerate(found.runs)
        ]
    }
