"""Reads durations as people write them: ``"5ms"``, ``0.25``."""

from __future__ import annotations

import math
import re

from ..errors import UsageError

__all__ = ["BUDGET", "parse_duration"]

BUDGET = "5ms"  # the default for safe points
UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
LONGEST = 3600.0


def parse_duration(value: str | float, name: str) -> float:
    """Return a duration in seconds. ``name`` is the argument's name for the error.

    >>> parse_duration("5ms", "budget"), parse_duration(0.25, "budget")
    (0.005, 0.25)
    """
    seconds = _read(value)
    if seconds is None or not math.isfinite(seconds) or not 0 <= seconds <= LONGEST:
        raise UsageError(
            f'{name}={value!r} is not a duration; write "5ms", "200us" or "0.1s", or a number of seconds from 0 to 3600'
        )
    return seconds


def _read(value: object) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if abs(value) <= LONGEST else None
    if not isinstance(value, str):
        return None
    found = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*(us|µs|ms|s)\s*", value)
    return float(found[1]) * UNITS[found[2]] if found else None
