"""What is done at the end of the process.

Python runs exit functions in the reverse order of their registration. The one here is registered when arena is
imported, and not when what it ends begins, so that a recording has what the program's own exit functions do.
"""

from __future__ import annotations

import atexit

from .. import _core

# Not typing's: see arena/__init__.py.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["at_exit"]

_functions: list[Callable[[], object]] = []


def at_exit(function: Callable[[], object]) -> None:
    """Call a function at the end, before what asked for that earlier."""
    _functions.append(function)


@atexit.register
def _end() -> None:
    try:
        for function in reversed(_functions):
            function()
    finally:
        _core.stop_host_functions()
