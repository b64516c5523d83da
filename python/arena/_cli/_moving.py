"""What commands that replay assume about moving live data, and how they say so."""

from __future__ import annotations

__all__ = ["NO_COMPACT", "assumed"]

NO_COMPACT = "Never move live data: for programs in which other threads launch work, as in many services."


def assumed(compact: bool) -> str:
    if compact:
        return "live data may be moved, as in programs of one thread (with more: --no-compact)"
    return "live data is never moved (--no-compact)"
