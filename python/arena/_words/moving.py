"""Whether live data may be moved, why not, and how to allow it: the same texts for errors, reports and commands."""

from __future__ import annotations

__all__ = ["ALLOWED", "MODES", "OFF", "PLAIN", "THREADS", "assumed", "how_to_allow", "in_words", "mode", "sentence"]

ALLOWED, OFF, THREADS, PLAIN = "allowed", "switched off", "other threads", "plain segments"

MODES = {
    ALLOWED: "live data may be moved",
    OFF: "live data may not be moved: compact=False",
    THREADS: 'live data may not be moved: another thread may launch work (compact="auto")',
    PLAIN: "live data is never moved: there is no virtual memory",
}
"""The values of ``moving`` in errors, snapshots and reports, each with its description."""

_SAFE_POINT = 'call pool.safe_point(budget="1s"), or arena.safe_point(budget="1s") for all arenas,'
_WHEN = "when no work is being launched, such as between batches or requests"
_GUARANTEE = "with compact=True, if you can guarantee that no work is launched during a request"


def mode(compact: bool | str, *, is_plain: bool, is_allowed: bool) -> str:
    """Which of :data:`MODES` an arena with this ``compact=`` is in."""
    if is_plain:
        return PLAIN
    if is_allowed:
        return ALLOWED
    return OFF if compact is False else THREADS


def in_words(moving: str) -> str:
    """The description of a mode; empty if the mode is unknown."""
    return MODES.get(moving, "")


def how_to_allow(moving: str, *, is_captured: bool = False) -> str:
    """What the program can change so that live data may be moved for such a request."""
    when = "before the capture begins" if is_captured else _WHEN
    if moving == OFF:
        alternative = "" if is_captured else f"; or {_GUARANTEE}"
        return f'create the arena with compact="auto" and {_SAFE_POINT} {when}{alternative}.'
    alternative = "" if is_captured else f"; or create the arena {_GUARANTEE}"
    return f"{_SAFE_POINT} {when}{alternative}."


def assumed(compact: bool) -> str:
    """What a replay assumed about the recorded program."""
    return "live data may be moved, as in single-threaded programs" if compact else "live data is never moved"


def sentence(words: str) -> str:
    """Capitalize the words and add a full stop."""
    return f"{words[0].upper()}{words[1:]}." if words else ""
