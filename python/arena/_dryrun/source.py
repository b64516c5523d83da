"""Where in the program a thread is, and what the source says there."""

from __future__ import annotations

import functools
import linecache
import os
import sys
import sysconfig
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

__all__ = ["Place", "here", "line_here", "text_at"]

FRAMEWORKS = (
    "torch",
    "cupy",
    "cupyx",
    "numpy",
    "numba",
    "numba_cuda",
    "cuda",
)  # their lines say less than those of their callers
OWN = str(Path(__file__).parent.parent) + os.sep  # of arena
INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class Place:
    """A line of a program. ``columns`` are where the expression that runs begins, and where it ends in its ``last``
    line, in bytes, if known.
    """

    file: str
    line: int
    function: str
    columns: tuple[int, int] | None = None
    last: int = 0

    @property
    def name(self) -> str:
        if not self.line:
            return self.file
        return f"{os.path.basename(self.file)}:{self.line} in {self.function}"


def here() -> Place | None:
    """The innermost line that belongs to neither Python, a framework nor arena, or a framework's outermost: one of its
    tests or programs. None if there is neither."""
    frame = innermost()
    if frame is None:
        return None
    last, columns = expression_of(frame)
    return Place(frame.f_code.co_filename, frame.f_lineno, name_of(frame), columns, last)


def line_here() -> str:
    """The same as text; empty if there is none."""
    frame = innermost()
    return "" if frame is None else Place(frame.f_code.co_filename, frame.f_lineno, name_of(frame)).name


def innermost() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    of_framework = None
    while frame is not None and is_passed_over(frame.f_code.co_filename):
        if is_installed(frame.f_code.co_filename):
            of_framework = frame
        frame = frame.f_back
    return frame or of_framework


def name_of(frame: FrameType) -> str:
    return getattr(frame.f_code, "co_qualname", frame.f_code.co_name)  # co_qualname: since Python 3.11


def is_installed(file: str) -> bool:
    return any(f"{os.sep}{folder}{os.sep}" in file for folder in INSTALLED) and not file.startswith(OWN)


@functools.lru_cache(maxsize=4096)
def is_passed_over(file: str) -> bool:
    if file.startswith(("<frozen", "<string>", OWN)):
        return True
    parts = file.split(os.sep)
    for folder in INSTALLED:
        if folder in parts:
            return parts[parts.index(folder) + 1] in FRAMEWORKS
    return file.startswith(sysconfig.get_paths()["stdlib"] + os.sep)


def expression_of(frame: FrameType) -> tuple[int, tuple[int, int] | None]:
    """The last line and the columns of the expression that a frame is at. Python knows them from 3.11 on."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None or frame.f_lasti < 0:
        return 0, None
    for index, (first, last, begin, end) in enumerate(positions()):
        if index == frame.f_lasti // 2:
            return (last, (begin, end)) if first == frame.f_lineno and begin is not None else (0, None)
    return 0, None


def text_at(place: Place, longest: int) -> str:
    """The source of the expression or, if that is not known, of the line; empty if there is no source."""
    lines = [linecache.getline(place.file, number) for number in range(place.line, max(place.last, place.line) + 1)]
    if place.columns is not None:
        begin, end = place.columns
        lines[-1] = lines[-1].encode()[:end].decode(errors="replace")
        lines[0] = lines[0].encode()[begin:].decode(errors="replace")
    return textwrap.shorten(" ".join(lines), longest, placeholder=" ...")
