"""The warning that a program runs on simulated memory although it did not request that."""

from __future__ import annotations

import sys
import warnings

from .._words.plain import plain
from ..errors import SimulatedDriverWarning

__all__ = ["warn"]

# Packages whose frames are skipped to find the program's own.
SKIPPED = {"arena", "cupy", "cupyx", "cupy_backends"}


def warn(why: str) -> None:
    """Warn at the line of the program that needed a driver. Called by the compiled core, without its lock."""
    warnings.warn(
        f"running on simulated memory, because {plain(why)}. Set ARENA_DRIVER=sim if that is what you want, or "
        "ARENA_DRIVER=cuda to get an error instead",
        SimulatedDriverWarning,
        stacklevel=_level(),
    )


def _level() -> int:
    """How many frames above :func:`warn` the program is; 1 if there is no such frame."""
    level, frame = 1, sys._getframe(1)
    while frame.f_globals.get("__name__", "").partition(".")[0] in SKIPPED:
        if frame.f_back is None:
            return 1
        level, frame = level + 1, frame.f_back
    return level
