"""The time of day, for reports and recordings."""

from __future__ import annotations

import time

__all__ = ["now"]


def now() -> str:
    """The local time in ISO 8601, to the second: ``2026-01-31T09:05:00+01:00``.

    Not by :mod:`datetime`: Python 3.13 crashes there while the interpreter shuts down, and a report may be made then.
    """
    local = time.localtime()
    hours, minutes = divmod(abs(local.tm_gmtoff) // 60, 60)
    sign = "-" if local.tm_gmtoff < 0 else "+"
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', local)}{sign}{hours:02}:{minutes:02}"
