"""Whether an arena may move live data, now and for a request, and why not."""

from __future__ import annotations

import functools
from collections.abc import Callable

from .. import _core
from .._words.moving import in_words, mode, sentence
from ..errors import UsageError
from .threads import find_standstill, registering_libraries, seems_alone

__all__ = ["forbids_safe_point", "may_move", "mode_now", "mode_of", "refused", "would_move"]

Compact = bool | str


def may_move(compact: Compact, core: _core.Arena) -> bool | Callable[[], _core.Standstill | None]:
    """Whether a request may move live data, or a function that finds out. The core checks again right before."""
    return functools.partial(find_standstill, core.synchronize) if compact == "auto" else bool(compact)


def would_move(compact: Compact, *, recheck: bool = True) -> bool:
    """Whether a request made now may move live data, without waiting for anything."""
    return seems_alone(recheck=recheck) if compact == "auto" else bool(compact)


def forbids_safe_point(compact: Compact) -> bool:
    """Whether nothing moves at a safe point either: its caller speaks for threads, not for pages."""
    return compact is False or (compact == "auto" and bool(registering_libraries()))


def mode_now(compact: Compact, core: _core.Arena, *, is_allowed: bool) -> str:
    """The arena's mode of moving live data, in one of the words of ``_words/moving.py``."""
    is_judged = compact == "auto" and not is_allowed and not core.is_plain
    libraries = registering_libraries() if is_judged else ()
    return mode(compact, is_plain=core.is_plain, is_allowed=is_allowed, libraries=libraries)


def mode_of(compact: Compact, core: _core.Arena, failure: _core.Failure) -> str:
    """The same for a failed request; where the mode made no difference, the current one."""
    is_allowed = failure.could_move or (not failure.depends_on_moving and would_move(compact))
    return mode_now(compact, core, is_allowed=is_allowed)


def refused(compact: Compact, core: _core.Arena) -> UsageError:
    """The error of ``trim(compact=True)`` where live data may not be moved."""
    why = sentence(in_words(mode_now(compact, core, is_allowed=False)))
    return UsageError(f"trim(compact=True) would move live data. {why}")
