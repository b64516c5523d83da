"""The account over time in HTML: what stands around the page's picture, and a picture for notebooks."""

from __future__ import annotations

from collections.abc import Iterator

from .._util.sizes import format_size
from .._words.account import REASONS
from .model import FIGURES, Report, Samples
from .parts import TONES, swatch, table, text
from .timeline import instant, squeeze, thin_indices, words

__all__ = ["inline_timeline", "picture", "shown_sample", "timeline_part"]

TITLE = "Reserved bytes over time, by reason"
BUCKETS = 20  # of the table
COLUMNS, HEIGHT = 240, 60  # of the picture in a notebook


def shown_sample(report: Report, samples: Samples, *, is_end: bool) -> int:
    """The one whose figures are shown at first: of the moment that the report is of."""
    return len(samples.at) - 1 if is_end or report.verdict else samples.peak


def timeline_part(report: Report, *, is_end: bool) -> str:
    """The section of the page. Its script fills in the figures of the moment that is chosen."""
    samples = report.timeline
    if samples is None:
        return ""
    shown = shown_sample(report, samples, is_end=is_end)
    entries = "".join(figure(samples, name, shown) for name in FIGURES)
    return f"""<section aria-labelledby="timeline-title">
<h2 id="timeline-title">Over time</h2>
<p id="timeline-about">{text(words(samples, failed=bool(report.verdict)))}</p>
<div id="timeline" tabindex="0" role="application" aria-label="{TITLE}" aria-describedby="timeline-help">
  <canvas aria-hidden="true"></canvas>
</div>
<div id="timeline-details" role="status" aria-live="polite" aria-atomic="true">
<strong id="timeline-when">{text(instant(samples, shown))}</strong>
<dl>{entries}</dl>
</div>
<p id="timeline-help">Point at a moment to see its figures here. Keys, when the
picture has the focus: <kbd>←</kbd> <kbd>→</kbd> to the sample before or after, <kbd>Page up</kbd> <kbd>Page down</kbd>
twenty at a time, <kbd>Home</kbd> <kbd>End</kbd> to the first or last, <kbd>p</kbd> to the peak.</p>
<details><summary>As a table</summary><div class="wide">{timeline_table(samples)}</div></details>
</section>
"""


def figure(samples: Samples, name: str, index: int) -> str:
    value = format_size(samples.figures[name][index])
    shown = swatch(name) if name in REASONS else ""
    return f'<div class="{name}"><dt>{shown}{name}</dt><dd data-figure="{name}">{value}</dd></div>'


def timeline_table(samples: Samples) -> str:
    """Those that matter most: the picture has many more."""
    live, reserved = samples.figures["live"], samples.figures["reserved"]
    shown = sorted({*thin_indices(live, reserved, BUCKETS), samples.peak})
    rows = [
        (instant(samples, index), *(f"{samples.figures[name][index]:,}" for name in ("reserved", "live", *REASONS)))
        for index in shown
    ]
    caption = f"{len(shown):,} of {len(samples.at):,} samples, in bytes"
    return table(caption, ("When", "reserved", "live", *REASONS), rows, kind="timeline", words=(0,))


def inline_timeline(report: Report) -> str:
    """What is reserved and what is live, as two areas; no script, and no text that a notebook could stretch."""
    samples = report.timeline
    return picture(samples, failed=bool(report.verdict)) if samples is not None else ""


def picture(samples: Samples, failed: bool = False) -> str:
    said = text(words(samples, failed=failed))
    live = f"var(--requested,{TONES['requested']})"
    areas = (
        f'<path d="{area(samples, "reserved")}" fill="currentColor" fill-opacity=".25"/>'
        f'<path d="{area(samples, "live")}" fill="{live}"/>'
    )
    return (
        f'<div style="margin:.6em 0 .15em">Over time: live and, in grey, what else is reserved. {said}</div>'
        f'<svg role="img" aria-label="{said}" viewBox="0 0 {COLUMNS} {HEIGHT}" preserveAspectRatio="none" '
        f'style="width:100%;height:7em;border:1px solid;border-radius:3px">{areas}</svg>'
    )


def area(samples: Samples, name: str) -> str:
    top = max(1, *samples.figures["reserved"])

    def steps() -> Iterator[str]:
        for column, value in enumerate(squeeze(samples, name, COLUMNS)):
            yield f"V{HEIGHT * (1 - value / top):.4g}H{column + 1}"

    return f"M0 {HEIGHT}{''.join(steps())}V{HEIGHT}Z"
