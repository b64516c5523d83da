"""A card describes an object: one line of text and, for a notebook, figures and the source lines that hold memory."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .._inspect.holders import Holder
from .._report.parts import name_of, table, text
from .._util.sizes import format_size
from .._words.format import counted
from .._words.plain import plain

__all__ = ["Card", "card_of", "counted", "html_of", "line_of", "rows_of", "size", "table", "text"]

MOST_LINES = 8
DIV = '<div style="max-width:60em;font-family:system-ui,sans-serif;font-size:13px;line-height:1.45">'

size = format_size


@dataclass(frozen=True)
class Card:
    """The description of an object. All of it is plain text, except ``more``."""

    line: str
    """``arena.Buffer of 5 MiB at 0x7f00 on device 0``"""
    figures: Sequence[tuple[str, str]] = ()
    """Names and values, for a notebook."""
    lines: Callable[[], Sequence[Holder]] = tuple
    """Source lines and what they hold, largest first. Called only for a notebook, because it may take a while."""
    held: str = "Live bytes by line"
    """The title of the table of lines."""
    more: Callable[[], str] = str
    """HTML to append."""


@functools.singledispatch
def card_of(thing: Any) -> Card:
    """The card of an object: by default, all fields of a dataclass."""
    fields = [(one.name, getattr(thing, one.name)) for one in dataclasses.fields(thing)]
    shown = [(name, str(value)) for name, value in fields if not name.startswith("_")]
    return Card(f"arena.sim.{type(thing).__name__}", shown)


def line_of(thing: Any) -> str:
    """One line of text, whatever names contain."""
    return plain(f"<{card_of(thing).line}>")


def html_of(thing: Any) -> str:
    """HTML, with all names escaped."""
    card = card_of(thing)
    parts = [f'<div style="font-weight:600">{text(card.line)}</div>']
    if card.figures:
        parts.append(rows_of([(text(name), text(value)) for name, value in card.figures]))
    if lines := card.lines():
        parts.append(lines_table(card.held, lines))
    return f"{DIV}{''.join(parts)}{card.more()}</div>"


def rows_of(rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table of HTML cells, with a header in each row; the columns in ``numbers`` are right-aligned."""

    def style(index: int) -> str:
        side = "right" if index in numbers else "left"
        return f'style="text-align:{side};padding:.15em .6em;font-weight:normal;vertical-align:top"'

    body = "".join(
        f'<tr><th scope="row" {style(0)}>{row[0]}</th>'
        + "".join(f"<td {style(index)}>{cell}</td>" for index, cell in enumerate(row) if index)
        + "</tr>"
        for row in rows
    )
    return f'<table style="border-collapse:collapse;font-size:inherit;color:inherit"><tbody>{body}</tbody></table>'


def lines_table(title: str, lines: Sequence[Holder]) -> str:
    rows = [(name_of(line.name or "unknown"), size(line.bytes), f"{line.blocks:,}") for line in lines[:MOST_LINES]]
    if rest := lines[MOST_LINES:]:
        total, blocks = sum(line.bytes for line in rest), sum(line.blocks for line in rest)
        rows.append((f"{len(rest):,} more", size(total), f"{blocks:,}"))
    return table(text(title), ("Line", "Bytes", "Blocks"), rows, kind="lines", words=(0,))
