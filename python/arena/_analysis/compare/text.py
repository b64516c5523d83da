"""Renders a comparison for an 80-column terminal: a table, and a small chart for each run."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..._report.timeline import LIVE, RESERVED, mark, most_of
from ..._util.console import rendered, words
from ..._util.sizes import format_size
from .model import FIGURES, Cell, Comparison, Run

__all__ = ["render", "render_json", "renderables"]

WIDTH = 80
CHART_WIDTH, CHART_ROWS = 66, 4
COLOURS = ("blue", "red", "green", "magenta")
BESIDE = 3  # up to this many runs, changes are shown beside the figures; otherwise below


def render(found: Comparison) -> str:
    """Plain text, without colours."""
    return "\n".join(rendered(renderables(found), WIDTH)) + "\n"


def render_json(found: Comparison) -> str:
    return json.dumps(found.to_dict(), indent=1) + "\n"


def renderables(found: Comparison) -> Iterator[RenderableType]:
    """The parts of the text, from top to bottom."""
    yield words(found.caption)
    yield Text()
    for run, colour in zip(found.runs, COLOURS, strict=False):
        yield words((run.letter, f"bold {colour}"), f"  {run.name}")
    yield Text()
    yield table(found)
    base = found.base.letter if found.base else "A"
    yield words(f"* best of those that fit; percentages are changes from {base}", style="dim")
    yield Text()
    over = "time" if found.axis == "time" else "events"
    yield words(f"{LIVE[-1]} live, {RESERVED} reserved beyond it, over {over}, all on one scale:")
    most = max((point.reserved for run in found.runs for point in run.points), default=0)
    for run, colour in zip(found.runs, COLOURS, strict=False):
        yield from chart(run, found, most, colour)


def table(found: Comparison) -> Table:
    made = Table(box=None, padding=(0, 1), pad_edge=False)
    made.add_column("", no_wrap=True)
    for run, colour in zip(found.runs, COLOURS, strict=False):
        made.add_column(Text(f"{run.letter}  ", style=f"bold {colour}"), justify="right")
    made.add_row("fits", *(f"{run.verdict}  " for run in found.runs))
    for figure in FIGURES:
        cells = found.row(figure)
        made.add_row(figure.title, *(_cell(cell, len(found.runs)) for cell in cells))
    return made


def _cell(cell: Cell, runs: int) -> Text:
    mark = " *" if cell.best else "  "
    text = Text(cell.text, style="bold" if cell.best else "")
    if runs > BESIDE:
        return text.append(mark).append(f"\n{cell.change}  " if cell.change else "", style="dim")
    return text.append(f" {cell.change}" if cell.change else "", style="dim").append(mark)


def chart(run: Run, found: Comparison, most: int, colour: str) -> Iterator[Text]:
    """Rows of characters: live from the bottom, other reserved memory above."""
    columns = binned(run, found)
    for row in reversed(range(CHART_ROWS)):
        label = run.letter if row == CHART_ROWS - 1 else ""
        line = Text(f"{label:>2} ", style=f"bold {colour}")
        for column in columns:
            shown = mark(*(value * CHART_ROWS / most - row for value in column)) if most else " "
            line.append(shown, style="dim" if shown == RESERVED else colour)
        if row == CHART_ROWS - 1:
            line.append(" " * (CHART_WIDTH - len(columns)) + f" {format_size(most)}", style="dim")
        yield line
    end = f"stopped: {run.stopped}" if run.stopped else ""
    if run.is_whole and run.done.ended_by:
        end = "the recorded run ended here with a failed request"
    yield Text(f"   {'─' * CHART_WIDTH}", style="dim")
    if end:
        yield words(f"   {end}", style="bold red")


def binned(run: Run, found: Comparison) -> list[tuple[int, int]]:
    """Live and reserved bytes, the maximum of each column, up to where the run ended."""
    span = max((point.seconds for one in found.runs for point in one.points), default=0.0) or 1.0
    shares = [point.seconds / span if found.axis == "time" else point.share for point in run.points]
    places = [min(CHART_WIDTH - 1, int(share * CHART_WIDTH)) for share in shares]
    columns = max(places, default=-1) + 1
    live = most_of(zip(places, (point.live for point in run.points), strict=True), columns)
    reserved = most_of(zip(places, (point.reserved for point in run.points), strict=True), columns)
    return list(zip(live, reserved, strict=True))
