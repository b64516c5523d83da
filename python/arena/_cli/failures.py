"""Describes failed requests of a recorded run, for commands."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from .._trace import Failure, Survived
from .._words.plain import plain

__all__ = ["about_failures"]

WIDTH = 80


def about_failures(ended_by: Failure | None, survived: Survived, events: int) -> Iterator[str]:
    """Lines of text; none if no request failed, or all retries succeeded."""
    for text in (ended_by.sentences(events) if ended_by else "", survived.sentences()):
        # Before it is wrapped: a newline in a name would become the end of a line.
        yield from textwrap.wrap(plain(text), WIDTH, break_long_words=False, break_on_hyphens=False)
