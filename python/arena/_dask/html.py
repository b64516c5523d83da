"""Renders the report of a cluster as a self-contained page, and as HTML without scripts for a notebook.

Names of workers, lines and frameworks are untrusted: they all go through ``text`` or ``name_of``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._report import page
from .._report.page import file_of
from .._report.parts import COUNTS, TONES, bar, name_of, percent, swatch, table, text
from .._report.timeline import seconds
from .._report.timeline_html import chart_data, picture, section
from .._util.sizes import format_size
from .._words.account import REASONS
from .._words.format import counted, format_share
from ..errors import numbered
from .heat import heat_map
from .model import ClusterLine, ClusterReport, WorkerArena
from .names import worker_text
from .text import shown_frameworks

__all__ = ["render", "render_inline"]

MOST_ROWS = 100  # of a table: the last row sums up the rest
MOST_INLINE = 16
REPORT = "arena._report"  # the package with the style sheet and the scripts


def render(report: ClusterReport) -> str:
    """The whole page."""
    samples = report.timeline
    return page.fill(
        file_of(__package__, "cluster.html"),
        {name: file_of(REPORT, f"{name}.js") for name in ("tools", "timeline")},
        {
            "reasons": list(REASONS),
            "timeline": chart_data(samples, samples.peak) if samples is not None else None,
        },
        title=text(f"arena: Dask cluster {report.scheduler} {report.made}"),
        headline=headline(report),
        caption=text(report.caption),
        absent=absent(report),
        next_steps=next_steps(report),
        tiles=tiles(report),
        workers=workers_table(report.arenas),
        timeline=section(samples, samples.peak).replace("a cap of", "caps of") if samples is not None else "",
        heat=heat_map(report),
        bars=bars(report),
        account=account_table(report),
        holders=holders(report),
        counts=counts_table(report),
    )


def render_inline(report: ClusterReport) -> str:
    """The report in a notebook: no scripts, and text in the notebook's own colour."""
    over_time = picture(report.timeline).replace("a cap of", "caps of") if report.timeline is not None else ""
    return (
        '<div style="max-width:60em;font-family:system-ui,sans-serif;font-size:13px;line-height:1.45">'
        f"{headline(report, tag='div')}"
        f'<p style="margin:.4em 0">{text(report.caption)}</p>'
        f"{absent(report)}{next_steps(report)}{workers_table(report.arenas, most=MOST_INLINE)}{over_time}"
        f"{holders(report)}</div>"
    )


def headline(report: ClusterReport, tag: str = "h1") -> str:
    return (
        f'<{tag} style="font-weight:600">What arena holds in the Dask cluster {name_of(report.scheduler)}</{tag}>'
        f'<div class="made" style="opacity:.8">arena {text(report.arena)}, {text(report.made.replace("T", " "))}</div>'
    )


def absent(report: ClusterReport) -> str:
    """The workers that did not answer, and those that left."""
    silent = [f"worker {name_of(worker_text(one.name, one.address))}: {text(one.reason)}" for one in report.missing]
    gone = [
        f"worker {name_of(worker_text(one.name, one.address))}, {seconds(max(one.ago, 0.001))} ago"
        f"{_last_seen(one.figures)}"
        for one in report.departed
    ]
    return _items("No answer from", silent) + _items("Left the cluster", gone)


def _last_seen(figures: dict[str, int]) -> str:
    if "live" not in figures or "cap" not in figures:
        return ""
    return f", last seen with {format_share(figures['live'], figures['cap'])} live"


def _items(title: str, items: Sequence[str]) -> str:
    if not items:
        return ""
    style = f"border-left:4px solid var(--stranded,{TONES['stranded']});padding:.3em .8em;margin:.4em 0"
    rows = "".join(f"<li>{item}</li>" for item in items)
    return f'<div class="absent" style="{style}"><strong>{title}</strong><ul>{rows}</ul></div>'


def next_steps(report: ClusterReport) -> str:
    lines = [line.partition(" ") for line in numbered(report.notes)]
    return "".join(
        f'<p class="next" style="margin:.4em 0"><strong>{word}</strong> {text(note)}</p>' for word, _, note in lines
    )


def tiles(report: ClusterReport) -> str:
    """The four most important figures."""
    account, size = report.account, format_size
    cards = counted(len({one.device["card"] for one in report.arenas}), "card")
    nearest = report.arenas[0] if report.arenas else None
    peak = ""
    if report.timeline is not None:
        most = report.timeline.figures["live"][report.timeline.peak]
        peak = f"{size(most)} at the peak"
    figures = (
        ("Arenas", f"{len(report.arenas):,}", f"on {cards}"),
        ("Live", size(account["live"]), peak or f"in {counted(report.counts['blocks'], 'block')}"),
        ("Reserved", size(account["reserved"]), f"of caps of {size(account['cap'])}"),
        (
            "Nearest to its cap",
            f"{nearest.pressure:.0%}" if nearest else "none",
            f"worker {name_of(nearest.name)}" if nearest else "",
        ),
    )
    cells = "".join(f"<div><dt>{name}</dt><dd><b>{value}</b> {words}</dd></div>" for name, value, words in figures)
    return f'<dl class="tiles">{cells}</dl>'


def workers_table(arenas: Sequence[WorkerArena], most: int = MOST_ROWS) -> str:
    if not arenas:
        return "<p>No worker has an arena.</p>"
    rows = [_worker_row(one) for one in arenas[:most]]
    if rest := arenas[most:]:
        live, reserved = (sum(one.account[name] for one in rest) for name in ("live", "reserved"))
        rows.append((f"{len(rest):,} more", "", "", "", format_size(live), "", format_size(reserved), "", ""))
    head = ("Worker", "Device", "Under its cap", "Of cap", "Live", "Peak", "Reserved", "Cap", "Largest request")
    caption = "What each arena holds under its cap, in the colours of the table below"
    return table(caption, head, rows, kind="workers", words=(0, 1, 2))


def _worker_row(one: WorkerArena) -> tuple[str, ...]:
    size = format_size
    addresses = [] if one.name == ", ".join(one.addresses) else one.addresses
    where = " ".join([*addresses, f"on {one.host}"])
    own = "" if one.is_plugins else " (created by a task)"
    shared = f", shared by {one.sharing}" if one.sharing > 1 else ""
    parts = [(name, one.account[name], f"{name} {size(one.account[name])}") for name in REASONS]
    whole = max(one.account["cap"], one.account["reserved"], 1)
    return (
        f'{name_of(one.name)}{own}<br><span class="address" style="opacity:.8">{name_of(where)}</span>',
        text(one.device["label"].removeprefix("device ")) + shared,
        bar("", parts, whole, "1.3em"),
        percent(one.pressure),
        *(size(value) for value in (one.account["live"], one.peak["peak_live"], one.account["reserved"])),
        size(one.account["cap"]),
        size(one.largest),
    )


def bars(report: ClusterReport) -> str:
    account, size = report.account, format_size
    whole = max(account["cap"], account["reserved"], 1)
    now = [(name, account[name], f"{name} {size(account[name])}") for name in REASONS]
    title = f"Now, {size(account['reserved'])} reserved of caps of {size(account['cap'])} in all"
    return f'<div class="bars" style="margin:.8em 0">{bar(title, now, whole, "2.2em", chips=True)}</div>'


def account_table(report: ClusterReport) -> str:
    account, size = report.account, format_size
    rows = []
    for name, words in REASONS.items():
        share = percent(account[name] / account["reserved"]) if account["reserved"] else ""
        rows.append((swatch(name) + name, f"{account[name]:,}", size(account[name]), share, words))
    bound = f"of caps of {account['cap']:,} in all"
    rows.append(("= reserved", f"{account['reserved']:,}", size(account["reserved"]), "", bound))
    head = ("Reason", "Bytes", "Size", "Share", "Description")
    return table("Every reserved byte has one reason", head, rows, kind="account", words=(0, 4))


def holders(report: ClusterReport) -> str:
    live = report.account["live"]
    peaks = sum(one.peak["peak_live"] for one in report.arenas)
    found = [
        lines_table("By line, now", "Line", report.lines, live),
        lines_table("By line, at the peak of each arena", "Line", report.peak_lines, peaks),
        lines_table("By framework, now", "Framework", shown_frameworks(report), live),
    ]
    return "".join(found) or "<p>No lines were traced: ArenaPlugin(..., lines=True) does that.</p>"


def lines_table(caption: str, head: str, lines: Sequence[ClusterLine], whole: int) -> str:
    if not lines:
        return ""
    shown, rest = lines[:MOST_ROWS], lines[MOST_ROWS:]
    rows = [(name_of(one.name), *_figures(one.bytes, one.blocks, whole), f"{one.arenas:,}") for one in shown]
    if rest:
        size, blocks = sum(one.bytes for one in rest), sum(one.blocks for one in rest)
        rows.append((f"{len(rest):,} more", *_figures(size, blocks, whole), ""))
    titles = (head, "Bytes", "Share", "Blocks", "Arenas")
    return f'<div class="wide">{table(caption, titles, rows, kind="holders lines", words=(0,))}</div>'


def _figures(size: int, blocks: int, whole: int) -> tuple[str, str, str]:
    share = min(1.0, size / whole) if whole else 0.0
    return f"{size:,}", f'<span class="share" style="--share:{100 * share:.2f}%">{percent(share)}</span>', f"{blocks:,}"


def counts_table(report: ClusterReport) -> str:
    rows: list[tuple[Any, ...]] = [
        (text(name), f"{count:,}", text(COUNTS.get(name, ""))) for name, count in report.counts.items()
    ]
    return table("Since the arenas were created", ("What", "Count", "Description"), rows, kind="counts", words=(0, 2))
