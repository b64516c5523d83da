"""What commands that replay assume about moving live data, and how they say so."""

from __future__ import annotations

from .._words import moving

__all__ = ["NO_COMPACT", "assumed"]

NO_COMPACT = "Never move live data: for programs in which other threads launch work, as in many services."


def assumed(compact: bool) -> str:
    return f"{moving.assumed(compact)} ({'otherwise: ' if compact else ''}--no-compact)"
