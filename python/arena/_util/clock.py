"""The time of day, for reports and recordings."""

from __future__ import annotations

import time

__all__ = ["now"]


def now() -> str:
    """The local time in ISO 8601, to the second: ``2026-01-31T09:05:00+01:00``.

    Avoids :mod:`datetime`, which crashes in Python 3.13 while the interpreter shuts down; a report may be made then.
    """
    local = time.localtime()
    hours, minutes = divmod(abs(local.tm_gmtoff) // 60, 60)
    sign = "-" if local.tm_gmtoff < 0 else "+"
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', local)}{sign}{hours:02}:{minutes:02}"
