"""Whether live data may be moved under its pointers, why not, and how to allow it: in the same words everywhere."""

from __future__ import annotations

__all__ = ["ALLOWED", "MODES", "OFF", "PLAIN", "THREADS", "assumed", "how_to_allow", "in_words", "mode", "sentence"]

ALLOWED, OFF, THREADS, PLAIN = "allowed", "switched off", "other threads", "plain segments"

MODES = {
    ALLOWED: "live data may be moved",
    OFF: "live data may not be moved: compact=False",
    THREADS: 'live data may not be moved: another thread may launch work (compact="auto")',
    PLAIN: "live data is never moved: there is no virtual memory",
}
"""What ``moving`` is in errors, snapshots and reports, each in words."""

_SAFE_POINT = 'call pool.safe_point(budget="1s"), or arena.safe_point(budget="1s") for all arenas,'
_WHEN = "when no work is being launched, such as between batches or requests"
_VOUCH = "with compact=True, if you vouch that no work is launched during a request"


def mode(compact: bool | str, *, is_plain: bool, is_allowed: bool) -> str:
    """Which of :data:`MODES` an arena with this ``compact=`` is in."""
    if is_plain:
        return PLAIN
    if is_allowed:
        return ALLOWED
    return OFF if compact is False else THREADS


def in_words(moving: str) -> str:
    """The same in words; empty if it is not known."""
    return MODES.get(moving, "")


def how_to_allow(moving: str, *, is_captured: bool = False) -> str:
    """What a program does so that live data can be moved for a request which failed without that."""
    when = "before the capture begins" if is_captured else _WHEN
    if moving == OFF:
        vouch = "" if is_captured else f"; or {_VOUCH}"
        return f'make the arena with compact="auto" and {_SAFE_POINT} {when}{vouch}.'
    vouch = "" if is_captured else f"; or make the arena {_VOUCH}"
    return f"{_SAFE_POINT} {when}{vouch}."


def assumed(compact: bool) -> str:
    """What a replay assumed of the program that was recorded."""
    return "live data may be moved, as in programs of one thread" if compact else "live data is never moved"


def sentence(words: str) -> str:
    """The words as a sentence."""
    return f"{words[0].upper()}{words[1:]}." if words else ""
