"""The environment variables that arena reads, and a warning about unknown ones.

Each is read where it is used, and must be listed here.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Iterator

from .._words.plain import plain

__all__ = ["KNOWN", "unknown_variables", "warn_of_unknown"]

KNOWN = (
    "ARENA_ASSUME",
    "ARENA_CAP",
    "ARENA_DEBUG",
    "ARENA_DRIVER",
    "ARENA_GROWTH",
    "ARENA_HEADROOM",
    "ARENA_LINES",
    "ARENA_OOM_DIR",
    "ARENA_RECORD",
    "ARENA_RESERVE",
    "ARENA_VALIDATE",
    "ARENA_VALUES",
)
# Read by arena's own tests and tools.
_TEST_VARIABLES = ("FAULTS", "LOAD_SECONDS", "MEMORY_VIZ", "PROMISE", "RACES", "STEPS", "TEST_DRIVER", "TEST_INSIDE")
_PREFIX = "ARENA_"
_warned: set[str] = set()


def unknown_variables() -> Iterator[str]:
    """Yield a warning for each variable that looks like one of arena's but is not; once per process."""
    for name, value in sorted(os.environ.items()):
        rest = name.removeprefix(_PREFIX)
        if rest == name or not value or name in KNOWN or rest in _TEST_VARIABLES or name in _warned:
            continue
        _warned.add(name)
        near = difflib.get_close_matches(rest.upper(), [known.removeprefix(_PREFIX) for known in KNOWN], 1)
        hint = f"did you mean {_PREFIX}{near[0]}?" if near else f"known variables: {', '.join(KNOWN)}"
        yield f"{name} is set, but arena does not know this variable; {hint}"


def warn_of_unknown() -> None:
    for text in unknown_variables():
        warnings.warn(plain(text), RuntimeWarning, stacklevel=3)
