"""The parts of a report in HTML: texts, tables and bars, for the page and for notebooks.

Styles are inline, so that a notebook needs no style sheet. Colours are variables that the page sets for light and dark
mode; elsewhere they fall back to tones that are visible on both.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from .._inspect.holders import Holder
from .._util.sizes import format_size
from .._words.account import REASONS, STATES
from .._words.format import counted
from .._words.moving import in_words, sentence
from ..errors import numbered
from .failure import held_in_words, holder_in_words
from .model import FAR, Bin, Report, Segment, by_moving_now, scale, verdict_in_words
from .text import OUTSIDE, addresses_in_words, by_low, squeeze

__all__ = [
    "account_table",
    "bars",
    "counts_table",
    "fragmentation_table",
    "headline",
    "histogram",
    "holders_tables",
    "inline_maps",
    "largest_table",
    "legend",
    "moment",
    "next_steps",
    "pins_table",
    "sizes_table",
    "text",
    "tiles",
    "verdict",
]

TONES = {
    "requested": "#2f7fc1",
    "rounding": "#58a3d6",
    "pending": "#b9699b",
    "captured": "#8445e8",
    "releasable": "#1f9a72",
    "stranded": "#d9661f",
    "spare": "#6b6b6b",
    "outside": "#8a8a8a",
    "hole": "#8883",
}
PATTERNS = {
    "rounding": "repeating-linear-gradient(90deg,#0005 0 1px,transparent 1px 4px)",
    "pending": "radial-gradient(circle at 3px 3px,var(--stripe,#fff8) 1.3px,transparent 1.6px) 0 0/6px 6px",
    "captured": "repeating-linear-gradient(0deg,var(--stripe,#fff8) 0 1px,transparent 1px 5px),"
    "repeating-linear-gradient(90deg,var(--stripe,#fff8) 0 1px,transparent 1px 5px)",
    "releasable": "repeating-linear-gradient(0deg,var(--stripe,#fff8) 0 1.5px,transparent 1.5px 5px)",
    "stranded": "repeating-linear-gradient(135deg,var(--stripe,#fff8) 0 2px,transparent 2px 6px)",
    "spare": "repeating-linear-gradient(45deg,var(--stripe,#fff8) 0 1px,transparent 1px 4px)",
    "outside": "repeating-linear-gradient(45deg,#0006 0 2px,transparent 2px 4px)",
}
MEANINGS = {
    "external": "Share of the memory left under the cap and on the device that a single request cannot get.",
    "contiguous": "Share of the free bytes outside the largest free piece: what a pool without stitching would lose.",
    "internal": "Share of the live bytes that was not requested, but added by rounding.",
}
COUNTS = {
    "allocations": "successful requests so far",
    "blocks": "live now",
    "hits": "requests served without a driver call",
    "splits": "requests served from part of a larger gap",
    "failures": "failed requests",
    "maps": "handles mapped",
    "unmaps": "handles unmapped",
    "rebacked": "handles replaced by smaller ones, with their data moved",
    "driver_calls": "driver calls of all kinds",
    "waits": "times a stream waited for another",
}
MAP_COLUMNS, MAP_ROWS, MOST_MAPS = 96, 6, 4  # of the maps in a notebook
FIRST = 8  # pins shown without unfolding
MOST_ROWS = 100  # of a table: the last row sums up the rest


def text(value: str) -> str:
    """Escape text for HTML. File names need not even be valid Unicode."""
    return html.escape(value.encode("utf-8", "backslashreplace").decode("utf-8"))


def name_of(value: str) -> str:
    """A user's name, isolated so that right-to-left text in it does not affect its surroundings."""
    return f"<bdi>{text(value)}</bdi>"


def fill(name: str) -> str:
    colour = "requested" if name == "live" else name
    tone = f"var(--{colour},{TONES[colour]})"
    return f"background:{PATTERNS[colour]},{tone}" if colour in PATTERNS else f"background:{tone}"


def swatch(name: str) -> str:
    return (
        f'<span aria-hidden="true" style="display:inline-block;width:1em;height:1em;margin-right:.5em;'
        f'vertical-align:-.12em;border-radius:2px;{fill(name)}"></span>'
    )


def percent(share: float) -> str:
    return f"{share:.1%}"


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str, words: Sequence[int]) -> str:
    """A table of HTML cells, with a header in each row; the columns in ``words`` are text, the others numbers."""

    def align(index: int, more: str = "") -> str:
        side = "left" if index in words else "right"
        nowrap = "" if index in words else ";white-space:nowrap"
        return f'style="text-align:{side};padding:.25em .6em{nowrap};vertical-align:top{more}"'

    heads = "".join(f'<th scope="col" {align(index)}>{cell}</th>' for index, cell in enumerate(head))
    body = "".join(
        f'<tr><th scope="row" {align(0, ";font-weight:normal")}>{row[0]}</th>'
        + "".join(f"<td {align(index)}>{cell}</td>" for index, cell in enumerate(row) if index)
        + "</tr>"
        for row in rows
    )
    return (
        f'<table class="{kind}" style="border-collapse:collapse;font-size:inherit;color:inherit"><caption '
        f'style="text-align:left">{caption}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    )


def headline(report: Report, tag: str = "h1") -> str:
    device = report.device
    name = device["name"] or device["label"]
    kind = "plain segments" if report.plain else f"granules of {format_size(report.granule)}"
    remark = f'<p class="remark" style="margin:.4em 0">Note: {text(device["remark"])}.</p>' if device["remark"] else ""
    return (
        f'<{tag} style="font-weight:600">What arena holds on {name_of(name)}</{tag}>'
        f'<div class="made" style="opacity:.8">arena {text(report.arena)}, {text(device["label"])}, '
        f"{kind}, {text(report.made.replace('T', ' '))}</div>{remark}"
    )


def verdict(report: Report) -> str:
    if not report.verdict:
        return ""
    style = f"margin:.6em 0;padding:.5em .8em;border-left:4px solid var(--stranded,{TONES['stranded']});font-weight:600"
    title, *lines = held_in_words(report.held, report.scope) or [""]
    rows = "".join(f"<li>{format_size(one.bytes)} in {name_of(holder_in_words(one))}</li>" for one in report.held)
    held = f'<div style="font-weight:400">{text(title)}<ul style="margin:.2em 0">{rows}</ul></div>' if lines else ""
    return f'<div class="verdict" style="{style}">{name_of(verdict_in_words(report))}{held}</div>'


def moment(report: Report) -> str:
    return f'<p class="moment" style="margin:.4em 0">{name_of(report.moment)}</p>' if report.moment else ""


def next_steps(report: Report) -> str:
    lines = [line.partition(" ") for line in numbered(report.notes)]
    return "".join(
        f'<p class="next" style="margin:.4em 0"><strong>{word}</strong> {text(note)}</p>' for word, _, note in lines
    )


def tiles(report: Report) -> str:
    """The four most important figures."""
    account, size = report.account, format_size
    share = percent(account["stranded"] / max(account["cap"], 1))
    figures = (
        ("Reserved", size(account["reserved"]), f"of a cap of {size(account['cap'])}"),
        (
            "Live",
            size(account["live"]),
            f"in {counted(report.counts['blocks'], 'block')}",
        ),
        ("Stranded", size(account["stranded"]), f"{share} of the cap"),
        ("Largest request", size(report.largest["now"]), f"would pass now{now_in_words(report)}"),
    )
    cells = "".join(f"<div><dt>{name}</dt><dd><b>{value}</b> {words}</dd></div>" for name, value, words in figures)
    return f'<dl class="tiles">{cells}</dl>'


def now_in_words(report: Report) -> str:
    """Whether the largest request needs moving live data, if that makes a difference."""
    is_by_moving = by_moving_now(report)
    return "" if is_by_moving is None else f", {'with' if is_by_moving else 'without'} moving live data"


def bars(report: Report, chips: bool = True) -> str:
    """What is reserved under the cap, now and at the peak, and its share of the device.

    ``chips`` are labels on the parts; they need the page's background colour.
    """
    account, peak, size = report.account, report.peak, format_size
    whole, is_far = scale(report)
    limit = min(account["cap"], account["reserved"] + max(0, report.device["free"] - account["headroom"]))
    blocked = 0 if is_far else max(0, account["cap"] - max(limit, account["reserved"]))
    now = [(name, account[name], f"{name} {size(account[name])}") for name in REASONS]
    now.append(("", whole - account["reserved"] - blocked, "can still be reserved"))
    now.append(("outside", blocked, f"{size(blocked)} unavailable: in use outside this arena, or headroom"))
    then = [(name, peak[name], f"{name} {size(peak[name])}") for name in REASONS]
    of = f"of a cap of {size(account['cap'])}" + (", which is far to the right of these bars" if is_far else "")
    return (
        '<div class="bars" style="margin:.8em 0">'
        + bar(f"Now, {size(account['reserved'])} reserved {of}", now, whole, "2.2em", chips=chips)
        + bar(f"At the peak, {size(peak['reserved'])} reserved", then, whole, "1em")
        + device_bar(report)
        + "</div>"
    )


def device_bar(report: Report) -> str:
    """How the device's memory is used; without a bar if next to nothing is in use."""
    account, device, size = report.account, report.device, format_size
    kept = min(account["headroom"], device["free"])
    places = [
        ("requested", account["reserved"], f"this arena {size(account['reserved'])}"),
        ("", device["free"] - kept, f"free {size(device['free'])}"),
        ("spare", kept, f"headroom {size(kept)}"),
        ("outside", device["outside"], f"outside this arena {size(device['outside'])}"),
    ]
    words = ", ".join(label for _, value, label in places if value > 0)
    title, total = f"The device, {size(device['total'])}: {words}", max(device["total"], 1)
    if (account["reserved"] + device["outside"] + kept) * 2 * FAR < total:
        return f'<div class="device" style="margin:.5em 0 .15em">{title}</div>'
    title += f"; the line is the cap, {size(account['cap'])}"
    return bar(title, places, total, "1em", mark=account["cap"] / total)


def bar(
    title: str,
    parts: Sequence[tuple[str, int, str]],
    whole: int,
    height: str,
    mark: float | None = None,
    chips: bool = False,
) -> str:
    """One stacked bar. Parts that are wide enough have labels; all have tooltips."""
    drawn = ""
    for name, value, label in parts:
        if value <= 0:
            continue
        share = 100 * value / whole
        # A label that does not fit wraps to the next line, which is hidden, so it is never cut off in the middle.
        chip = (
            '<span style="width:0;height:100%"></span><span class="chip" style="flex:none;background:var(--page);'
            f'padding:0 .35em;border-radius:3px;margin:0 .3em">{label}</span>'
        )
        style = (
            f"flex:0 0 auto;width:{share:.4f}%;min-width:1px;box-sizing:border-box;overflow:hidden;white-space:nowrap;"
            "display:flex;flex-wrap:wrap;align-items:center;font-size:.85em;line-height:1.2;"
        )
        shown = chip if chips else ""
        drawn += f'<div class="part {name}" title="{label}" style="{style}{fill(name) if name else ""}">{shown}</div>'
    description = "; ".join(label for _, value, label in parts if value > 0)
    line = (
        f'<div style="position:absolute;left:{100 * min(mark, 1):.4f}%;top:-4px;bottom:-4px;margin-left:-1px;'
        'width:2px;background:currentColor"></div>'
        if mark is not None
        else ""
    )
    return (
        f'<div style="margin:.5em 0 .15em">{title}</div>'
        f'<div role="img" aria-label="{title}: {description or "nothing"}" style="position:relative">'
        f'<div class="bar" style="display:flex;height:{height};border:1px solid;border-radius:3px;overflow:hidden">'
        f"{drawn}</div>{line}</div>"
    )


def account_table(report: Report) -> str:
    account, device, size = report.account, report.device, format_size
    rows = []
    for name, words in REASONS.items():
        if name == "stranded" and account["compactable"]:
            words += f", {size(account['compactable'])} of it whole granules"
        share = percent(account[name] / account["reserved"]) if account["reserved"] else ""
        rows.append((swatch(name) + name, f"{account[name]:,}", size(account[name]), share, words))
    bound = f"of a cap of {account['cap']:,}"
    if account["headroom"]:
        bound += f", with a headroom of {account['headroom']:,}"
    rows.append(("= reserved", f"{account['reserved']:,}", size(account["reserved"]), "", bound))
    rows.append(("device", f"{device['total']:,}", size(device["total"]), "", f"{device['free']:,} free"))
    rows.append(("outside", f"{device['outside']:,}", size(device["outside"]), "", OUTSIDE))
    if device["addresses"]:
        words = addresses_in_words(report)
        rows.append(("addresses", f"{device['addresses']:,}", size(device["addresses"]), "", words))
    head = ("Reason", "Bytes", "Size", "Share", "Description")
    return table("Every reserved byte has one reason", head, rows, kind="account", words=(0, 4))


def fragmentation_table(report: Report) -> str:
    now, peak = report.fragmentation["now"], report.fragmentation["peak"]
    rows = [
        (name, percent(getattr(now, name)), percent(getattr(peak, name)), words) for name, words in MEANINGS.items()
    ]
    return table(
        "Fragmentation",
        ("Kind", "Now", "At the peak", "What it means"),
        rows,
        kind="fragmentation",
        words=(0, 3),
    )


def largest_table(report: Report) -> str:
    names = {"now": "now", "after_trim": "after trim()"}
    names |= {"without_moving": "without moving live data", "with_moving": "with moving live data"}
    rows = [
        (words, f"{report.largest[key]:,}", format_size(report.largest[key]))
        for key, words in names.items()
        if key in report.largest
    ]
    found = table("The largest request that would pass", ("When", "Bytes", "Size"), rows, kind="largest", words=(0,))
    return found + (
        f'<p class="moving">{text(sentence(in_words(report.moving)))}</p>' if in_words(report.moving) else ""
    )


def pins_table(report: Report) -> str:
    if not report.pins:
        if report.account["stranded"]:
            return "<p>No single block: each piece of free memory is held back by several live blocks.</p>"
        return "<p>Nothing: there is no free memory next to live blocks.</p>"
    rows = []
    for pin in report.pins:
        place = f"from {name_of(pin.line)}" if pin.line else f"at {pin.address:#x}"
        scope = f" in {name_of(pin.scope)}" if pin.scope else ""
        words = f"{format_size(pin.size)} {place}{scope} holds back {format_size(pin.holds_back)}"
        label = f'aria-label="Show {pin.address:#x} on the map"'
        button = f'<button type="button" data-address="{pin.address}" {label}>Show</button>'
        rows.append((words, f"{pin.holds_back:,}", f"{pin.size:,}", f"{pin.address:#x}", button))
    head = ("Live block", "Bytes held back", "Its bytes", "Address", "On the map")
    first = table("Live blocks that keep free memory from being returned", head, rows[:FIRST], kind="pins", words=(0,))
    if len(rows) <= FIRST:
        return first
    rest = table("More blocks", head, rows[FIRST:], kind="pins", words=(0,))
    return f"{first}<details><summary>{len(rows) - FIRST} more</summary>{rest}</details>"


def holders_tables(report: Report) -> str:
    streams = [Holder(f"{use.stream:#x}", use.bytes, use.blocks) for use in report.streams]
    frameworks = report.frameworks if len(report.frameworks) > 1 else []
    found = [
        holder_table("By framework", "Framework", "frameworks", frameworks, report.account["live"]),
        holder_table("By line", "Line", "lines", report.lines, report.account["live"]),
        holder_table("By scope", "Scope", "scopes", report.scopes, report.account["live"]),
        holder_table("By age", "Age", "ages", report.ages, report.account["live"]),
        holder_table("By stream", "Stream", "streams", streams, report.account["live"]),
    ]
    return "".join(found) or "<p>Nothing is live.</p>"


def holder_table(caption: str, head: str, kind: str, holders: list[Holder], live: int) -> str:
    if not holders:
        return ""
    shown, rest = holders[:MOST_ROWS], holders[MOST_ROWS:]
    rows = [(name_of(holder.name), *figures(holder.bytes, holder.blocks, live)) for holder in shown]
    if rest:
        size, blocks = sum(holder.bytes for holder in rest), sum(holder.blocks for holder in rest)
        rows.append((f"{len(rest):,} more", *figures(size, blocks, live)))
    found = table(caption, (head, "Bytes", "Share of live", "Blocks"), rows, kind=f"holders {kind}", words=(0,))
    return f'<div class="wide">{found}</div>'


def figures(size: int, blocks: int, live: int) -> tuple[str, str, str]:
    share = size / live if live else 0.0
    return f"{size:,}", f'<span class="share" style="--share:{100 * share:.2f}%">{percent(share)}</span>', f"{blocks:,}"


def sizes_table(report: Report) -> str:
    live, free = by_low(report.live_sizes), by_low(report.free_sizes)
    rows = []
    for low in sorted({**live, **free}):
        cells = [
            entry for bins in (live, free) for entry in ((bins[low].count, bins[low].bytes) if low in bins else (0, 0))
        ]
        if cells[0] or cells[2]:
            rows.append((f"{format_size(low)} to {format_size(2 * low)}", *(f"{cell:,}" for cell in cells)))
    head = ("Size", "Live blocks", "Live bytes", "Free pieces", "Free bytes")
    return table("Live blocks and free pieces by size", head, rows, kind="sizes", words=(0,))


def histogram(report: Report) -> str:
    """Live and free pieces by size, in bytes; the page can show the number of pieces instead."""
    live, free = (by_low([one for one in bins if one.count]) for bins in (report.live_sizes, report.free_sizes))
    bins = [*live.values(), *free.values()]
    most = {name: max((getattr(one, name) for one in bins), default=0) or 1 for name in ("bytes", "count")}
    rows = ""
    for low in sorted({**live, **free}):
        bars = (
            size_bar(bins.get(low), most, reason, noun)
            for bins, reason, noun in ((live, "requested", "live block"), (free, "stranded", "free piece"))
        )
        rows += f'<div class="size">{format_size(low)}</div><div class="pair">{"".join(bars)}</div>'
    label = "Live blocks and free pieces by size; the table below has the figures"
    key = f"<span>{swatch('requested')}live blocks</span><span>{swatch('stranded')}free pieces</span>"
    about = '<p class="made">Each row covers sizes from this one up to twice as much.</p>'
    return f'<div class="legend">{key}</div>{about}<div class="histogram" role="img" aria-label="{label}">{rows}</div>'


def size_bar(one: Bin | None, most: dict[str, int], reason: str, noun: str) -> str:
    if one is None:
        return '<div class="one"></div>'
    shares = ";".join(f"--{name}:{100 * getattr(one, name) / whole:.2f}%" for name, whole in most.items())
    words = f"{counted(one.count, noun)}, {format_size(one.bytes)}"
    values = f'<span class="bytes">{format_size(one.bytes)}</span><span class="number">{one.count:,}</span>'
    return f'<div class="one" title="{words}" style="{shares}"><i style="{fill(reason)}"></i>{values}</div>'


def counts_table(report: Report) -> str:
    rows = [(text(name), f"{count:,}", text(COUNTS.get(name, ""))) for name, count in report.counts.items()]
    return table("Since the arena was created", ("What", "Count", "Description"), rows, kind="counts", words=(0, 2))


def legend() -> str:
    hole = swatch("hole") + "not mapped"
    return "".join(f"<span>{swatch(state)}{state}</span>" for state in STATES) + f"<span>{hole}</span>"


def inline_maps(report: Report) -> str:
    """Maps of the largest segments. The page has the complete map."""
    largest = sorted(report.segments, key=lambda segment: -segment.size)[:MOST_MAPS]
    maps = "".join(inline_map(report, segment) for segment in largest if segment.size >= report.granule)
    more = len(report.segments) - len(largest)
    return maps + (f"<div>and {counted(more, 'more segment')}</div>" if more else "")


def inline_map(report: Report, segment: Segment) -> str:
    total = segment.size // report.granule
    per_mark = max(1, -(-total // (MAP_COLUMNS * MAP_ROWS)))
    marks = list(squeeze(segment.cells, total, per_mark))
    width = min(len(marks), MAP_COLUMNS)
    rows = ""
    for begin in range(0, len(marks), width):
        row, parts, first = marks[begin : begin + width], "", 0
        for index in range(1, len(row) + 1):
            if index == len(row) or row[index] != row[first]:
                look = fill(row[first]) if row[first] != "hole" else "border-bottom:1px dotted"
                share = 100 * (index - first) / width
                parts += f'<div title="{row[first]}" style="width:{share:.3f}%;box-sizing:border-box;{look}"></div>'
                first = index
        rows += f'<div style="display:flex;height:1em;margin-top:2px">{parts}</div>'
    title = f"Segment at {segment.address:#x}, {format_size(segment.size)}, in the colours of the table"
    return (
        f'<div style="margin:.6em 0 .15em">{title}</div>'
        f'<div role="img" aria-label="{title}" style="border:1px solid;border-radius:3px;padding:0 2px 2px">'
        f"{rows}</div>"
    )
