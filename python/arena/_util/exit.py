"""Functions to run when the process exits.

Python runs exit functions in reverse order of registration. This module registers its own when arena is imported, not
when a recording starts, so that the recording includes what the program's exit functions do.
"""

from __future__ import annotations

import atexit

from .. import _core

# Not typing.TYPE_CHECKING: see arena/__init__.py.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["at_exit"]

_functions: list[Callable[[], object]] = []


def at_exit(function: Callable[[], object]) -> None:
    """Call a function at exit, before those registered earlier."""
    _functions.append(function)


@atexit.register
def _end() -> None:
    try:
        for function in reversed(_functions):
            function()
    finally:
        _core.stop_host_functions()
