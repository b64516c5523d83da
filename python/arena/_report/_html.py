"""A report as one page that needs no network."""

from __future__ import annotations

import html

from ._model import Report

__all__ = ["render", "render_inline"]


def render(report: Report) -> str:
    return f"<!doctype html><pre>{html.escape(str(report))}</pre>"


def render_inline(report: Report) -> str:
    return f"<pre>{html.escape(str(report))}</pre>"
