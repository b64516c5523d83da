"""Where text for people leaves: the console of all commands and text renderers, and lines on standard error.

Whatever is printed as a ``str`` is one line, and safe (``_words/plain.py``). What needs styles or several lines is made
of :func:`words`, :class:`~rich.table.Table` and the like, whose cells are ``str`` again.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.text import Text

from .._words.plain import plain

__all__ = ["Console", "rendered", "words"]


class Console(RichConsole):
    """Prints each ``str`` as one line of plain text: no markup, no emoji codes, nothing that a terminal would obey."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, **settings})

    def render_str(self, text: str, **settings: Any) -> Text:  # also for the cells and titles of tables
        return super().render_str(plain(text), **settings)

    def say(self, *lines: str) -> None:
        """Print lines; an empty one is a blank line."""
        for line in lines:
            self.print(line)


def words(*parts: str | tuple[str, str], style: str = "") -> Text:
    """One line of styled text; a part may be a pair of text and style."""
    pairs = [(part, "") if isinstance(part, str) else part for part in parts]
    return Text.assemble(*((plain(text), look) for text, look in pairs), style=style)


def rendered(parts: Iterable[RenderableType], width: int) -> list[str]:
    """The lines of what a console prints, without colours."""
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, legacy_windows=False)
    for part in parts:
        console.print(part)
    return [line.rstrip() for line in file.getvalue().split("\n")[:-1]]
