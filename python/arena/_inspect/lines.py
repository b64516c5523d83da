"""Remembering which lines of the program allocate."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .. import _core
from .._util.arguments import is_number
from ..errors import UsageError

__all__ = ["caller", "from_environment", "pass_over", "trace_lines"]

MOST = 64
_passed: list[str] = []  # folders whose lines are not the program's own
_read = False


def trace_lines(on: bool = True, *, depth: int = 1) -> None:
    """Have every allocation from now on remember the line of Python that made it; ``False`` ends that.

    Lines of arena itself and of CuPy are passed over: the line is the program's own. With a larger ``depth`` the lines
    that called it are remembered too, up to where the program began. A notebook's cell is called ``In [2]``.
    ``ARENA_LINES=1``, or another depth, does the same from the start. What it costs is measured by
    ``benchmarks/inspection.py``; off, it costs nothing.

    >>> import arena
    >>> arena.trace_lines(True, depth=2)
    >>> arena.trace_lines(False)
    """
    global _read
    if not isinstance(on, bool):
        raise UsageError(f"on={on!r} is not accepted; write True or False, and depth= for the number of lines")
    if isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth <= MOST:
        raise UsageError(f"depth={depth!r} is not accepted; write a number of lines from 1 to {MOST}")
    _read = True  # what is said in the program is stronger
    _core.trace_lines(depth if on else 0)


def from_environment() -> None:
    """Read ``ARENA_LINES``, once."""
    global _read
    if _read:
        return
    text = os.environ.get("ARENA_LINES", "").strip()
    if text and not (is_number(text) and int(text) <= MOST):
        raise UsageError(f"ARENA_LINES={text!r} is not accepted; write a number of lines, 1 to {MOST}, or 0 for none")
    _read = True
    if text:
        _core.trace_lines(int(text))


def pass_over(package: str | None) -> None:
    """Name the callers of a package, whose ``__file__`` this is, instead of its own lines."""
    if package is not None:
        folder = str(Path(package).parent) + os.sep
        _passed.append(folder)
        _core.pass_over_lines_in(folder)


def caller() -> tuple[str, int, str] | None:
    """The line of the program that this thread is in: file, number, function. Also where lines are not traced."""
    frame = sys._getframe()
    try:
        while frame.f_code.co_filename.startswith(tuple(_passed)):
            if frame.f_back is None:
                return None
            frame = frame.f_back
        name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)  # since Python 3.11
        return frame.f_code.co_filename, frame.f_lineno, name
    finally:
        del frame  # it would keep itself, and the arrays of all callers


pass_over(str(Path(__file__).parent))  # all of arena
_core.pass_over_lines_in("<frozen ")  # what imports modules and runs them
