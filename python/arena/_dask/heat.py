"""Draws how full every arena was over time: a row for each, as a picture without scripts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import groupby

from .._report.model import Samples
from .._report.parts import TONES, text
from .._report.timeline import seconds
from .._util.sizes import format_size
from .model import ClusterReport, WorkerArena

__all__ = ["heat_map"]

COLUMNS = 200
SHADES = 20
MOST = 64  # rows
FAINTEST = 0.12  # so that a little is not nothing


def heat_map(report: ClusterReport) -> str:
    """The section of the page; empty without samples."""
    timed = [(one, one.timeline) for one in report.arenas if one.timeline is not None]
    if not timed or report.timeline is None:  # or nothing was ever reserved
        return ""
    length = max(samples.at[-1] for _, samples in timed) or 1.0
    rows = "".join(_row(one, samples, length) for one, samples in timed[:MOST])
    more = f"<p>and {len(timed) - MOST} more</p>" if len(timed) > MOST else ""
    ramp = f"linear-gradient(90deg,{_colour(FAINTEST)},{_colour(1.0)})"
    began = text(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(report.begin)))
    return f"""<section aria-labelledby="heat-title">
<h2 id="heat-title">Each arena over time</h2>
<p class="made">Live bytes as a share of the arena's cap: 0%<span class="ramp" style="background:{ramp}"></span>100%.
Empty before the arena was created. All times are by the scheduler's clock.</p>
<div class="heat">{rows}
<div></div><div class="ends"><span>{began}</span><span>{seconds(length)} later</span></div></div>
{more}</section>
"""


def _row(one: WorkerArena, samples: Samples, length: float) -> str:
    most = max(samples.figures["live"])
    label = text(f"Worker {one.name}: at most {format_size(most)} live of a cap of {format_size(one.account['cap'])}")
    cells = "".join(
        f'<rect x="{begin}" y="0" width="{width}" height="1" fill="{_tone()}" fill-opacity="{opacity:.2f}"/>'
        for begin, width, opacity in _cells(samples, length)
    )
    return (
        f'<div class="who" title="{text(one.name)}"><bdi>{text(one.name)}</bdi></div>'
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {COLUMNS} 1" preserveAspectRatio="none">'
        f"<title>{label}</title>{cells}</svg>"
    )


def _cells(samples: Samples, length: float) -> Iterator[tuple[int, int, float]]:
    """Runs of columns with the same shade: the first column, how many, and the opacity."""
    shades = [0 if share is None else share for share in _shades(samples, length)]
    begin = 0
    for shade, run in groupby(shades):
        width = len(list(run))
        if shade:
            yield begin, width, FAINTEST + (1 - FAINTEST) * shade / SHADES
        begin += width


def _shades(samples: Samples, length: float) -> list[int | None]:
    """The highest share of the cap in each column, in steps; None before the first sample."""
    found: list[float | None] = [None] * COLUMNS
    current = 0.0
    shares = [live / max(cap, 1) for live, cap in zip(samples.figures["live"], samples.figures["cap"], strict=True)]
    places = [min(COLUMNS - 1, int(at * COLUMNS / length)) for at in samples.at]
    index = 0
    for column in range(places[0], COLUMNS):
        most = current  # what was live when the column begins
        while index < len(places) and places[index] <= column:
            current = shares[index]
            most = max(most, current)
            index += 1
        found[column] = most
    return [None if share is None else min(SHADES, -(-int(share * SHADES * 1000) // 1000)) for share in found]


def _tone() -> str:
    return f"var(--requested,{TONES['requested']})"


def _colour(opacity: float) -> str:
    return f"color-mix(in srgb, {_tone()} {opacity:.0%}, transparent)"
