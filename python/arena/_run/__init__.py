"""Runs a program for ``arena run``: :mod:`program` executes it, :mod:`signals` handles signals, and :mod:`session` sets
everything up and prints the summary at the end.
"""

from __future__ import annotations

from .program import run_program
from .session import Session

__all__ = ["Session", "run_program"]
