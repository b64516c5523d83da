"""The account over time in HTML: the section around the page's chart, and an SVG chart for notebooks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from .._util.sizes import format_size
from .._words.account import REASONS
from .model import FIGURES, Report, Samples
from .parts import TONES, swatch, table, text
from .timeline import instant, squeeze, thin_indices, words

__all__ = ["chart_data", "inline_timeline", "picture", "section", "shown_sample", "timeline_part"]

TITLE = "Reserved bytes over time, by reason"
BUCKETS = 20  # of the table
COLUMNS, HEIGHT = 240, 60  # of the chart in a notebook


def shown_sample(report: Report, samples: Samples, *, is_end: bool) -> int:
    """The sample selected at first: the moment that the report is about."""
    return len(samples.at) - 1 if is_end or report.verdict else samples.peak


def timeline_part(report: Report, *, is_end: bool) -> str:
    """The section of the page."""
    samples = report.timeline
    if samples is None:
        return ""
    return section(samples, shown_sample(report, samples, is_end=is_end), failed=bool(report.verdict))


def section(samples: Samples, shown: int, *, failed: bool = False) -> str:
    """The section with a chart of samples. Its script fills in the figures of the selected one."""
    entries = "".join(figure(samples, name, shown) for name in FIGURES)
    return f"""<section aria-labelledby="timeline-title">
<h2 id="timeline-title">Over time</h2>
<p id="timeline-about">{text(words(samples, failed=failed))}</p>
<div id="timeline" tabindex="0" role="application" aria-label="{TITLE}" aria-describedby="timeline-help">
  <canvas aria-hidden="true"></canvas>
</div>
<div id="timeline-details" role="status" aria-live="polite" aria-atomic="true">
<strong id="timeline-when">{text(instant(samples, shown))}</strong>
<dl>{entries}</dl>
</div>
<p id="timeline-help">Hover over the chart to see the figures of a moment here. Keys, while the
chart has focus: <kbd>←</kbd> <kbd>→</kbd> previous or next sample, <kbd>Page up</kbd> <kbd>Page down</kbd>
twenty samples, <kbd>Home</kbd> <kbd>End</kbd> first or last sample, <kbd>p</kbd> peak.</p>
<details><summary>As a table</summary><div class="wide">{timeline_table(samples)}</div></details>
</section>
"""


def chart_data(samples: Samples, shown: int, *, failed: bool = False) -> dict[str, Any]:
    """What the script draws."""
    return {**dataclasses.asdict(samples), "failed": failed, "shown": shown}


def figure(samples: Samples, name: str, index: int) -> str:
    value = format_size(samples.figures[name][index])
    shown = swatch(name) if name in REASONS else ""
    return f'<div class="{name}"><dt>{shown}{name}</dt><dd data-figure="{name}">{value}</dd></div>'


def timeline_table(samples: Samples) -> str:
    """The most important samples. The chart has many more."""
    live, reserved = samples.figures["live"], samples.figures["reserved"]
    shown = sorted({*thin_indices(live, reserved, BUCKETS), samples.peak})
    rows = [
        (instant(samples, index), *(f"{samples.figures[name][index]:,}" for name in ("reserved", "live", *REASONS)))
        for index in shown
    ]
    caption = f"{len(shown):,} of {len(samples.at):,} samples, in bytes"
    return table(caption, ("When", "reserved", "live", *REASONS), rows, kind="timeline", words=(0,))


def inline_timeline(report: Report) -> str:
    """Reserved and live bytes as two areas, without scripts or text inside that a notebook could stretch."""
    samples = report.timeline
    return picture(samples, failed=bool(report.verdict)) if samples is not None else ""


def picture(samples: Samples, failed: bool = False) -> str:
    description = text(words(samples, failed=failed))
    live = f"var(--requested,{TONES['requested']})"
    areas = (
        f'<path d="{area(samples, "reserved")}" fill="currentColor" fill-opacity=".25"/>'
        f'<path d="{area(samples, "live")}" fill="{live}"/>'
    )
    return (
        f'<div style="margin:.6em 0 .15em">Over time: live and, in grey, other reserved memory. {description}</div>'
        f'<svg role="img" aria-label="{description}" viewBox="0 0 {COLUMNS} {HEIGHT}" preserveAspectRatio="none" '
        f'style="width:100%;height:7em;border:1px solid;border-radius:3px">{areas}</svg>'
    )


def area(samples: Samples, name: str) -> str:
    top = max(1, *samples.figures["reserved"])

    def steps() -> Iterator[str]:
        for column, value in enumerate(squeeze(samples, name, COLUMNS)):
            yield f"V{HEIGHT * (1 - value / top):.4g}H{column + 1}"

    return f"M0 {HEIGHT}{''.join(steps())}V{HEIGHT}Z"
