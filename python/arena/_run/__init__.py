"""Running a program with the arena in it: :mod:`program` runs it, :mod:`signals` hears of signals, :mod:`session` sets
it all up and says at the end what came of it.
"""

from __future__ import annotations

from .program import run_program
from .session import Session

__all__ = ["Session", "run_program"]
