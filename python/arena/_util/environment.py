"""The environment variables that arena reads, and a warning about those that it does not know.

Each is read where it is used. A new one needs its name here.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Iterator

__all__ = ["KNOWN", "unknown_variables", "warn_of_unknown"]

KNOWN = (
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
)
# Of arena's own tests and tools, which have arenas in their processes.
_OF_TESTS = ("FAULTS", "LOAD_SECONDS", "MEMORY_VIZ", "PROMISE", "RACES", "STEPS", "TEST_DRIVER", "TEST_INSIDE")
_PREFIX = "ARENA_"
_warned: set[str] = set()


def unknown_variables() -> Iterator[str]:
    """A sentence about each variable that looks like one of arena's and is none; each only once in a process."""
    for name, value in sorted(os.environ.items()):
        rest = name.removeprefix(_PREFIX)
        if rest == name or not value or name in KNOWN or rest in _OF_TESTS or name in _warned:
            continue
        _warned.add(name)
        near = difflib.get_close_matches(rest.upper(), [known.removeprefix(_PREFIX) for known in KNOWN], 1)
        hint = f"did you mean {_PREFIX}{near[0]}?" if near else f"there are {', '.join(KNOWN[:-1])} and {KNOWN[-1]}"
        yield f"{name} is set, but arena has no such variable; {hint}"


def warn_of_unknown() -> None:
    for text in unknown_variables():
        warnings.warn(text, RuntimeWarning, stacklevel=3)
