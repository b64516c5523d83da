"""Renders a report as text for an 80-column terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from .._inspect.holders import Holder
from .._util.console import rendered, words
from .._util.sizes import format_size
from .._words.account import REASONS
from .._words.format import counted
from .._words.moving import in_words
from ..errors import numbered
from . import timeline as _timeline
from .failure import held_in_words
from .model import Bin, Cell, Report, Samples, Segment, scale, verdict_in_words

__all__ = ["account_lines", "render", "renderables"]

WIDTH = 80
MAP_WIDTH = 64
MAP_ROWS = 12
MOST = 8  # rows of a table
MOST_SEGMENTS = 4
MARKS = {"live": "█", "pending": "◌", "captured": "◆", "releasable": "·", "stranded": "▒", "hole": " "}
COLOURS = {
    "requested": "green",
    "rounding": "yellow",
    "pending": "magenta",
    "captured": "bright_blue",
    "releasable": "cyan",
    "stranded": "red",
    "spare": "blue",
    "live": "green",
    "hole": "dim",
}
BAR = {name: MARKS.get(name, "") for name in REASONS} | {"requested": "█", "rounding": "▓", "spare": "░"}


def render(report: Report) -> str:
    """Plain text, without colours."""
    return "\n".join(rendered(renderables(report), WIDTH)) + "\n"


def renderables(report: Report) -> Iterator[RenderableType]:
    """The parts of the report, from top to bottom."""
    yield from head(report)
    yield words(report.caption)
    yield Text()
    yield account_table(report)
    yield bar(report)
    yield Text()
    yield fragmentation_table(report)
    yield from figures(report)
    if report.timeline:
        yield Text()
        yield from timeline(report.timeline)
        yield words(_timeline.words(report.timeline, failed=bool(report.verdict)))
    for segment in report.segments[:MOST_SEGMENTS]:
        yield Text()
        yield from segment_map(report, segment)
    if len(report.segments) > MOST_SEGMENTS:
        rest = report.segments[MOST_SEGMENTS:]
        size = format_size(sum(segment.size for segment in rest))
        yield Text(f"and {counted(len(rest), 'more segment')}, {size}")
    yield from sizes(report)
    yield from tables(report)
    for line in numbered(report.notes):
        yield words(line, style="bold")


def head(report: Report) -> Iterator[Text]:
    device = report.device
    name = device["label"] + (f" ({device['name']})" if device["name"] else "")
    kind = "plain segments" if report.plain else f"granules of {format_size(report.granule)}"
    yield words(f"arena {report.arena} on {name}, {kind}, {report.made}", style="bold")
    if device["remark"]:
        yield words(f"Note: {device['remark']}.", style="bold")
    if report.moment:
        yield words(report.moment, style="bold")
    if report.end is not None:
        yield words(report.end.moment, style="bold")
    if report.verdict:
        yield words(verdict_in_words(report), style="bold red")
    for line in held_in_words(report.held, report.scope):
        yield words(line)


def account_table(report: Report) -> Table:
    table = Table(box=None, padding=(0, 1), show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column()
    reserved = report.account["reserved"]
    for name, meaning in REASONS.items():
        value = report.account[name]
        if name == "stranded" and report.account["compactable"]:
            meaning += f", {format_size(report.account['compactable'])} of it whole granules"
        share = f"{value / reserved:.0%}" if reserved else ""
        table.add_row(Text(f"{BAR[name]} {name}", style=COLOURS[name]), f"{value:,}", share, meaning)
    cap, headroom = report.account["cap"], report.account["headroom"]
    bound = f"of a cap of {cap:,}" + (f", headroom {headroom:,}" if headroom else "")
    table.add_row("= reserved", f"{reserved:,}", "", bound)
    device = report.device
    table.add_row("  device", f"{device['total']:,}", "", f"{device['free']:,} free")
    table.add_row("  outside", f"{device['outside']:,}", "", OUTSIDE)
    if device["addresses"]:
        table.add_row("  addresses", f"{device['addresses']:,}", "", addresses_in_words(report))
    return table


OUTSIDE = "in use outside this arena: CUDA context, libraries, others"


def addresses_in_words(report: Report) -> str:
    times = f"{report.device['addresses'] / max(report.account['cap'], 1):.3g} times the cap"
    peers = report.device["peers"]
    return f"{times}, open to device{'s' if len(peers) > 1 else ''} {', '.join(map(str, peers))}" if peers else times


def account_lines(report: Report) -> list[str]:
    """Only the account, as plain lines."""
    return rendered([account_table(report)], WIDTH)


def bar(report: Report) -> Text:
    """The cap as one bar with a part for each reason; the rest is not reserved. An arrow means the cap is far away."""
    text = Text("[")
    whole, is_far = scale(report)
    used, done = 0, 0
    for name in REASONS:
        done += report.account[name]
        end = round(done * (WIDTH - 2) / whole)
        text.append(BAR[name] * (end - used), style=COLOURS[name])
        used = end
    text.append(" " * (WIDTH - 2 - used) + (">" if is_far else "]"))
    return text


def fragmentation_table(report: Report) -> Table:
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    for title in ("fragmentation", "external", "contiguous", "internal"):
        table.add_column(title, justify="left" if title == "fragmentation" else "right")
    for name, when in (("now", "now"), ("peak", "at the peak")):
        frag = report.fragmentation[name]
        table.add_row(when, *(f"{value:.1%}" for value in (frag.external, frag.contiguous, frag.internal)))
    return table


def figures(report: Report) -> Iterator[Text]:
    now, after = (format_size(report.largest[name]) for name in ("now", "after_trim"))
    peak = {name: format_size(report.peak[name]) for name in ("peak_live", "reserved")}
    yield words(f"largest request that would pass: {now}, after trim {after}")
    without, by_moving = (report.largest.get(name, 0) for name in ("without_moving", "with_moving"))
    if without != by_moving:
        yield words(f"  without moving live data: {format_size(without)}; with moving: {format_size(by_moving)}")
        yield words(f"  {in_words(report.moving)}")
    yield words(f"peaks: {peak['peak_live']} live, {peak['reserved']} reserved")


def timeline(samples: Samples) -> Iterator[Text]:
    """What is reserved and what is live, from the beginning on; also for ``arena replay``."""
    yield Text("reserved and live bytes over time", style="bold")
    for row in _timeline.chart(samples, WIDTH):
        yield Text(row, no_wrap=True)


def segment_map(report: Report, segment: Segment) -> Iterator[Text]:
    """A map of the granules; each character stands for one or more of them."""
    total = segment.size // report.granule
    per_mark = max(1, -(-total // (MAP_WIDTH * MAP_ROWS)))
    unit = format_size(per_mark * report.granule)
    yield Text(f"segment at {segment.address:#x}, {format_size(segment.size)}; each mark is {unit}")
    marks = list(squeeze(segment.cells, total, per_mark))
    for row in range(0, len(marks), MAP_WIDTH):
        text = Text(f"{row * per_mark * report.granule // (1 << 20):>10,} MiB ")
        for state in marks[row : row + MAP_WIDTH]:
            text.append(MARKS[state], style=COLOURS[state])
        yield text
    legend = Text(" " * 15)
    for state, mark in MARKS.items():
        if state != "hole":
            legend.append(f"{mark} {state}  ", style=COLOURS[state])
    yield legend


def squeeze(cells: Iterable[Cell], total: int, per_mark: int) -> Iterator[str]:
    """For each mark, the most frequent state of its granules; live wins a tie: one block is enough to hold a handle."""
    order = ("live", "captured", "stranded", "pending", "releasable", "hole")
    counts = [dict.fromkeys(order, 0) for _ in range(-(-total // per_mark))]
    for cell in cells:
        first, end = cell.first, cell.first + cell.count
        while first < end:
            index = first // per_mark
            upto = min(end, (index + 1) * per_mark)
            counts[index][cell.state] += upto - first
            first = upto
    for count in counts:
        yield max(order, key=lambda state: count[state])


def sizes(report: Report) -> Iterator[RenderableType]:
    if not report.live_sizes and not report.free_sizes:
        return
    yield Text()
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    for title in ("sizes from", "live blocks", "bytes", "free pieces", "bytes"):
        table.add_column(title, justify="right")
    live, free = by_low(report.live_sizes), by_low(report.free_sizes)
    for low in sorted({**live, **free}):
        one, two = live.get(low), free.get(low)
        if (one and one.count) or (two and two.count):
            table.add_row(format_size(low), *cells_of(one), *cells_of(two))
    yield table


def by_low(bins: list[Bin]) -> dict[int, Bin]:
    return {entry.low: entry for entry in bins}


def cells_of(entry: Bin | None) -> tuple[str, str]:
    return (f"{entry.count:,}", format_size(entry.bytes)) if entry and entry.count else ("", "")


def tables(report: Report) -> Iterator[RenderableType]:
    is_mixed = len(report.frameworks) > 1
    streams = [Holder(f"stream {use.stream:#x}", use.bytes, use.blocks) for use in report.streams]
    for title, rows in (
        ("live bytes by framework", report.frameworks if is_mixed else []),
        ("by line" if is_mixed else "live bytes by line", report.lines),
        ("by scope", report.scopes),
        ("by age", report.ages),
        ("by stream", streams if len(streams) > 1 else []),
    ):
        if rows:
            yield Text()
            yield holder_table(title, rows)
    if report.pins:
        yield Text()
        yield Text("what holds free memory back")
        for pin in report.pins[:MOST]:
            place = f"from {pin.line}" if pin.line else f"at {pin.address:#x}"
            yield words(f"  {format_size(pin.size)} {place} holds back {format_size(pin.holds_back)}")
    yield Text()


def holder_table(title: str, rows: list[Holder]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column(title, overflow="fold")
    table.add_column("bytes", justify="right")
    table.add_column("blocks", justify="right")
    for holder in rows[:MOST]:
        table.add_row(holder.name, format_size(holder.bytes), f"{holder.blocks:,}")
    if len(rows) > MOST:
        rest = rows[MOST:]
        blocks = sum(holder.blocks for holder in rest)
        table.add_row(f"{len(rest):,} more", format_size(sum(holder.bytes for holder in rest)), f"{blocks:,}")
    return table
