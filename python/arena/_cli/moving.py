"""What replays assume about moving live data: the option and the line that commands print."""

from __future__ import annotations

from .._words import moving

__all__ = ["NO_COMPACT", "assumed"]

NO_COMPACT = "Never move live data: for programs whose threads launch work, such as services."


def assumed(compact: bool) -> str:
    return f"{moving.assumed(compact)} ({'otherwise: ' if compact else ''}--no-compact)"
