"""A page with two moments of a run, its peak and its end: one is shown, the other waits in a template.

A link with a fragment (``report.html#end``) selects one. The page then reloads, and ``moments.js`` inserts the selected
moment before anything is drawn, so all other scripts see only one moment.
"""

from __future__ import annotations

import dataclasses

from .model import Report
from .parts import text

__all__ = ["SHOWN", "WAITING", "body_of", "end_of", "links", "template"]

SHOWN, WAITING = "peak", "end"  # fragments
BEGIN, END = "<body>", '<script type="application/json" id="data">'


def end_of(report: Report) -> Report | None:
    """The other moment, with the same timeline of the whole run."""
    return dataclasses.replace(report.end, timeline=report.timeline) if report.end is not None else None


def links(peak: Report, end: Report | None, current: str) -> str:
    """Links to both moments; empty if there is only one."""
    if end is None:
        return ""

    def link(name: str, report: Report) -> str:
        here = ' aria-current="true"' if name == current else ""
        return f'<a href="#{name}"{here}>{text(report.moment.partition(":")[0])}</a>'

    return f'<nav class="moments" aria-label="Moment of the run">{link(SHOWN, peak)}{link(WAITING, end)}</nav>'


def body_of(page: str) -> tuple[str, str]:
    """The visible part of a page and its data. The rest is the same for both moments."""
    inside = page[page.index(BEGIN) + len(BEGIN) :]
    body, _, rest = inside.partition(END)
    return body, rest.partition("</script>")[0]


def template(page: str | None) -> str:
    """A template with the body and the data of the other moment's page."""
    if page is None:
        return ""
    body, data = body_of(page)
    return f'<template id="moment-{WAITING}">{body}{END}{data}</script></template>'
