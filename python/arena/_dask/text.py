"""Renders the report of a cluster as text for an 80-column terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from .._inspect.holders import NO_FRAMEWORK
from .._report import timeline as _timeline
from .._report.text import BAR, COLOURS, WIDTH
from .._report.text import timeline as draw_timeline
from .._util.console import rendered, words
from .._util.sizes import format_size
from .._words.account import REASONS
from .._words.format import counted
from ..errors import numbered
from .model import ClusterLine, ClusterReport, WorkerArena
from .names import worker_text

__all__ = ["render", "renderables", "shown_frameworks"]

MOST = 8  # rows of a table of lines
MOST_WORKERS = 32
METER = 12  # characters


def render(report: ClusterReport) -> str:
    """Plain text, without colours."""
    return "\n".join(rendered(renderables(report), WIDTH)) + "\n"


def renderables(report: ClusterReport) -> Iterator[RenderableType]:
    """The parts of the report, from top to bottom."""
    yield words(f"arena {report.arena} in the Dask cluster {report.scheduler}, {report.made}", style="bold")
    yield words(report.caption)
    yield from absent(report)
    if report.arenas:
        yield Text()
        yield workers(report.arenas)
        yield Text()
        yield account(report)
    if report.timeline is not None:
        yield Text()
        yield from draw_timeline(report.timeline)
        yield words(_timeline.words(report.timeline).replace("a cap of", "caps of"))
    for title, rows in (
        ("live bytes by line, all arenas", report.lines),
        ("at the peak of each arena", report.peak_lines),
        ("by framework", shown_frameworks(report)),
    ):
        if rows:
            yield Text()
            yield lines(title, rows)
    if report.notes:
        yield Text()
    for line in numbered(report.notes):
        yield words(line, style="bold")


def shown_frameworks(report: ClusterReport) -> list[ClusterLine]:
    """The frameworks, if any was used."""
    return report.frameworks if {one.name for one in report.frameworks} - {NO_FRAMEWORK} else []


def absent(report: ClusterReport) -> Iterator[Text]:
    for one in report.missing:
        yield words(f"No answer from worker {worker_text(one.name, one.address)}: {one.reason}", style="bold red")
    for gone in report.departed[:MOST]:
        figures = gone.figures
        last = f", last seen with {format_size(figures['live'])} live" if "live" in figures else ""
        limit = f" of a cap of {format_size(figures['cap'])}" if last and "cap" in figures else ""
        ago = _timeline.seconds(max(gone.ago, 0.001))
        yield words(f"Worker {worker_text(gone.name, gone.address)} left {ago} ago{last}{limit}")
    if len(report.departed) > MOST:
        yield words(f"and {len(report.departed) - MOST} more left before")


def workers(arenas: Sequence[WorkerArena]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("worker", overflow="fold", max_width=22)
    table.add_column("device", max_width=12, overflow="fold")
    for title in ("live", "of cap", "", "peak", "reserved", "largest"):
        table.add_column(title, justify="left" if not title else "right", no_wrap=True)
    for one in arenas[:MOST_WORKERS]:
        size = format_size
        table.add_row(
            one.name if one.is_plugins else f"{one.name} (task's)",
            one.device["label"].removeprefix("device "),
            size(one.account["live"]),
            f"{one.pressure:.0%}",
            meter(one),
            size(one.peak["peak_live"]),
            size(one.account["reserved"]),
            size(one.largest),
        )
    if len(arenas) > MOST_WORKERS:
        rest = arenas[MOST_WORKERS:]
        live = format_size(sum(one.account["live"] for one in rest))
        table.add_row(f"{len(rest):,} more", "", live, "", "", "", "", "")
    return table


def meter(one: WorkerArena) -> Text:
    """Live, other reserved, and free memory under the cap."""
    cap = max(one.account["cap"], 1)
    live = min(METER, round(METER * one.account["live"] / cap))
    reserved = min(METER, round(METER * one.account["reserved"] / cap)) - live
    text = Text("[")
    text.append(BAR["requested"] * live, style=COLOURS["requested"])
    text.append("░" * max(0, reserved) + " " * (METER - live - max(0, reserved)) + "]")
    return text


def account(report: ClusterReport) -> Table:
    table = Table(box=None, padding=(0, 1), show_header=False, pad_edge=False)
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify)
    reserved = report.account["reserved"]
    for name, meaning in REASONS.items():
        value = report.account[name]
        share = f"{value / reserved:.0%}" if reserved else ""
        table.add_row(Text(f"{BAR[name]} {name}", style=COLOURS[name]), f"{value:,}", share, meaning)
    table.add_row("= reserved", f"{reserved:,}", "", f"of caps of {report.account['cap']:,} in all")
    return table


def lines(title: str, rows: Sequence[ClusterLine]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column(title, overflow="fold")
    for name in ("bytes", "blocks", "arenas"):
        table.add_column(name, justify="right")
    for one in rows[:MOST]:
        table.add_row(one.name, format_size(one.bytes), f"{one.blocks:,}", f"{one.arenas:,}")
    if len(rows) > MOST:
        rest = rows[MOST:]
        size, blocks = sum(one.bytes for one in rest), sum(one.blocks for one in rest)
        table.add_row(counted(len(rest), "more line"), format_size(size), f"{blocks:,}", "")
    return table
