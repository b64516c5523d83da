"""Renders a report as a self-contained page, and as HTML without scripts for a notebook.

All text is rendered here; the page's scripts only draw the charts, from data in the page. Names of files and scopes are
untrusted: they all go through ``text``, and the page's policy allows scripts only by their hash.
"""

from __future__ import annotations

from typing import Any

from .._words.account import REASONS, STATES
from .model import Report
from .moments import SHOWN, WAITING, end_of, links, template
from .page import file_of, fill
from .parts import (
    account_table,
    bars,
    counts_table,
    fragmentation_table,
    headline,
    histogram,
    holders_tables,
    inline_maps,
    largest_table,
    legend,
    moment,
    next_steps,
    pins_table,
    sizes_table,
    text,
    tiles,
    verdict,
)
from .timeline_html import chart_data, inline_timeline, shown_sample, timeline_part

__all__ = ["render", "render_inline"]


def render(report: Report) -> str:
    """The whole page."""
    end = end_of(report)
    other = _render(end, report, end, WAITING) if end is not None else None
    return _render(report, report, end, SHOWN, template(other))


def _render(report: Report, peak: Report, end: Report | None, name: str, other: str = "") -> str:
    """The page of the moment called ``name``, with links to both moments."""
    return fill(
        file_of(__package__, "page.html"),
        {name: file_of(__package__, f"{name}.js") for name in ("moments", "tools", "map", "timeline")},
        _chart_data(report, is_end=name == WAITING),
        other=other,
        title=text(f"arena: {report.device['name'] or 'device'} {report.made}"),
        headline=headline(report),
        verdict=verdict(report),
        moment=links(peak, end, name) + moment(report),
        caption=text(report.caption),
        next_steps=next_steps(report),
        tiles=tiles(report),
        bars=bars(report),
        account=account_table(report),
        fragmentation=fragmentation_table(report),
        largest=largest_table(report),
        pins=pins_table(report),
        holders=holders_tables(report),
        no_sizes="" if report.live_sizes or report.free_sizes else " hidden",
        histogram=histogram(report),
        sizes=sizes_table(report),
        legend=legend(),
        timeline=timeline_part(report, is_end=name == WAITING),
        counts=counts_table(report),
    )


def render_inline(report: Report) -> str:
    """The report in a notebook: no scripts, and text in the notebook's own colour."""
    return (
        '<div style="max-width:60em;font-family:system-ui,sans-serif;font-size:13px;line-height:1.45">'
        f"{headline(report, tag='div')}{verdict(report)}{moment(report)}{moment(report.end) if report.end else ''}"
        f'<p style="margin:.4em 0">{text(report.caption)}</p>'
        f"{next_steps(report)}{bars(report, chips=False)}{account_table(report)}{inline_timeline(report)}"
        f"{inline_maps(report)}</div>"
    )


def _chart_data(report: Report, *, is_end: bool) -> dict[str, Any]:
    """The data that the scripts draw. Blocks are stored in columns and names as numbers: a fifth of the size."""
    names: dict[str, int] = {"": 0}

    def number(name: str) -> int:
        return names.setdefault(name, len(names))

    blocks = report.blocks
    columns = {
        "address": [block.address for block in blocks],
        "size": [block.size for block in blocks],
        "state": [number(block.state) for block in blocks],
        "count": [block.count for block in blocks],
        "line": [number(block.line) for block in blocks],
        "scope": [number(block.scope) for block in blocks],
        "stream": [number(f"{block.stream:#x}") for block in blocks],
        "age": [block.age if block.age is None else round(block.age, 3) for block in blocks],
    }
    return {
        "granule": report.granule,
        "states": {state: f"{state}: {REASONS[state]}" if state in REASONS else state for state in STATES},
        "reasons": list(REASONS),
        "segments": [[segment.address, segment.size] for segment in report.segments],
        "blocks": columns,
        "names": list(names),
        "timeline": _timeline(report, is_end=is_end),
    }


def _timeline(report: Report, *, is_end: bool) -> dict[str, Any] | None:
    if report.timeline is None:
        return None
    shown = shown_sample(report, report.timeline, is_end=is_end)
    return chart_data(report.timeline, shown, failed=bool(report.verdict))
