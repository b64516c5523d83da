"""Whether live data may be moved, why not, and how to allow it: the same texts for errors, reports and commands."""

from __future__ import annotations

__all__ = [
    "ALLOWED",
    "MODES",
    "OFF",
    "PLAIN",
    "REGISTERED",
    "THREADS",
    "assumed",
    "how_to_allow",
    "in_words",
    "is_mode",
    "mode",
    "sentence",
]

ALLOWED, OFF, THREADS, PLAIN = "allowed", "switched off", "other threads", "plain segments"
REGISTERED = "registered pages"

MODES = {
    ALLOWED: "live data may be moved",
    OFF: "live data may not be moved: compact=False",
    THREADS: 'live data may not be moved: another thread may launch work (compact="auto")',
    PLAIN: "live data is never moved: there is no virtual memory",
    REGISTERED: 'live data may not be moved: a library in use may have registered its pages (compact="auto")',
}
"""The values of ``moving`` in errors, snapshots and reports, each with its description.

The libraries follow the last one: ``"registered pages: NCCL, UCX"``."""

_LIBRARIES = f"{REGISTERED}: "
_MOST = 500  # characters

_SAFE_POINT = 'call pool.safe_point(budget="1s"), or arena.safe_point(budget="1s") for all arenas,'
_WHEN = "when no work is being launched, such as between batches or requests"
_GUARANTEE = "with compact=True, if you can guarantee that no work is launched during a request"


def mode(compact: bool | str, *, is_plain: bool, is_allowed: bool, libraries: tuple[str, ...] = ()) -> str:
    """Which of :data:`MODES` an arena with this ``compact=`` is in. ``libraries`` in use may have registered pages."""
    if is_plain:
        return PLAIN
    if is_allowed:
        return ALLOWED
    if compact is False:
        return OFF
    return f"{_LIBRARIES}{', '.join(libraries)}" if libraries else THREADS


def is_mode(moving: str) -> bool:
    """Whether a text, such as one from a file, is a value of ``moving``."""
    return moving in MODES or (moving.startswith(_LIBRARIES) and moving.isprintable() and len(moving) <= _MOST)


def in_words(moving: str) -> str:
    """The description of a mode; empty if the mode is unknown."""
    if moving.startswith(_LIBRARIES):
        return f'live data may not be moved: {_libraries(moving)} may have registered its pages (compact="auto")'
    return MODES.get(moving, "")


def _libraries(moving: str) -> str:
    names = moving.removeprefix(_LIBRARIES).split(", ")
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def how_to_allow(moving: str, *, is_captured: bool = False) -> str:
    """What the program can change so that live data may be moved for such a request."""
    when = "before the capture begins" if is_captured else _WHEN
    if moving.startswith(REGISTERED):
        which = _libraries(moving) if moving.startswith(_LIBRARIES) else "such a library"
        pinned = f"pin() the memory that you give to {which}, and create the arena {_GUARANTEE}."
        return f"{pinned} Then {_SAFE_POINT} {when}." if is_captured else pinned
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
