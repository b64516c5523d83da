"""What each public class shows of itself: :mod:`cards` and :mod:`answers` say what, :mod:`card` how."""

from __future__ import annotations

from . import answers as answers
from . import cards as cards
from .card import html_of, line_of

__all__ = ["html_of", "line_of"]
