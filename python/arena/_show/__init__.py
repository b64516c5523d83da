"""Renders public objects for ``repr()`` and notebooks. :mod:`cards` and :mod:`answers` describe them."""

from __future__ import annotations

from . import answers as answers
from . import cards as cards
from .card import html_of, line_of

__all__ = ["html_of", "line_of"]
