"""Traces which lines of the program allocate memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .. import _core
from .._util.arguments import is_number
from ..errors import UsageError

__all__ = ["caller", "from_environment", "pass_over", "trace_lines"]

MOST = 64
_skipped: list[str] = []  # folders whose lines are not the program's own
_is_set = False  # by the program, or already from the environment


def trace_lines(on: bool = True, *, depth: int = 1) -> None:
    """Record the line of Python that makes each allocation from now on; ``False`` turns that off.

    Lines of arena itself and of CuPy are skipped, so the line is the program's own. A larger ``depth`` also records
    the callers of that line. Notebook cells are called ``In [2]``. Set ``ARENA_LINES=1`` (or another depth) to trace
    from the start. ``benchmarks/inspection.py`` measures the cost; turned off, there is none.

    >>> import arena
    >>> arena.trace_lines(True, depth=2)
    >>> arena.trace_lines(False)
    """
    global _is_set
    if not isinstance(on, bool):
        raise UsageError(f"on={on!r} is not accepted; write True or False, and depth= for the number of lines")
    if isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth <= MOST:
        raise UsageError(f"depth={depth!r} is not accepted; write a number of lines from 1 to {MOST}")
    _is_set = True  # takes precedence over the environment
    _core.trace_lines(depth if on else 0)


def from_environment() -> None:
    """Read ``ARENA_LINES``, once."""
    global _is_set
    if _is_set:
        return
    text = os.environ.get("ARENA_LINES", "").strip()
    if text and not (is_number(text) and int(text) <= MOST):
        raise UsageError(f"ARENA_LINES={text!r} is not accepted; write a number of lines, 1 to {MOST}, or 0 for none")
    _is_set = True
    if text:
        _core.trace_lines(int(text))


def pass_over(package: str | None) -> None:
    """Skip the lines of a package, given its ``__file__``, and report its callers instead."""
    if package is not None:
        folder = str(Path(package).parent) + os.sep
        _skipped.append(folder)
        _core.pass_over_lines_in(folder)


def caller() -> tuple[str, int, str] | None:
    """The program's current line in this thread: file, number, function. Works even if lines are not traced."""
    frame = sys._getframe()
    try:
        while frame.f_code.co_filename.startswith(tuple(_skipped)):
            if frame.f_back is None:
                return None
            frame = frame.f_back
        name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)  # since Python 3.11
        return frame.f_code.co_filename, frame.f_lineno, name
    finally:
        del frame  # a reference cycle would keep the local variables of all callers alive


pass_over(str(Path(__file__).parent))  # all of arena
_core.pass_over_lines_in("<frozen ")  # importlib and runpy
