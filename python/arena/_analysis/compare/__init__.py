"""Compares replays side by side: several traces, or one trace under several settings.

:func:`compare` → :class:`Comparison` (model) → text, JSON, HTML
"""

from __future__ import annotations

from .model import Comparison, Run
from .run import compare

__all__ = ["Comparison", "Run", "compare"]
