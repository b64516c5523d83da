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

FRAMEWORKS = ("torch", "cupy", "cupyx", "numpy")  # their lines say less than those of their callers
INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class Place:
    """A line of a program. ``columns`` are those of the expression that runs, in bytes, if known."""

    file: str
    line: int
    function: str
    columns: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line} in {self.function}"


def here() -> Place | None:
    """The innermost line that belongs to neither Python, a framework nor arena; none if there is none."""
    frame = innermost()
    if frame is None:
        return None
    return Place(frame.f_code.co_filename, frame.f_lineno, name_of(frame), columns_of(frame))


def line_here() -> str:
    """The same as text; empty if there is none."""
    frame = innermost()
    return "" if frame is None else Place(frame.f_code.co_filename, frame.f_lineno, name_of(frame)).name


def innermost() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_passed_over(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def name_of(frame: FrameType) -> str:
    return getattr(frame.f_code, "co_qualname", frame.f_code.co_name)  # co_qualname: since Python 3.11


@functools.lru_cache(maxsize=4096)
def is_passed_over(file: str) -> bool:
    if file.startswith(("<frozen", "<string>", str(Path(__file__).parent.parent) + os.sep)):
        return True
    parts = file.split(os.sep)
    for folder in INSTALLED:
        if folder in parts:
            return parts[parts.index(folder) + 1] in FRAMEWORKS
    return file.startswith(sysconfig.get_paths()["stdlib"] + os.sep)


def columns_of(frame: FrameType) -> tuple[int, int] | None:
    """The columns of the expression that a frame is at, if it is on one line. Python knows them from 3.11 on."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None or frame.f_lasti < 0:
        return None
    for index, (first, last, begin, end) in enumerate(positions()):
        if index == frame.f_lasti // 2:
            return (begin, end) if first == last == frame.f_lineno and begin is not None else None
    return None


def text_at(place: Place, longest: int) -> str:
    """The source of the expression or, if that is not known, of the line; empty if there is no source."""
    line = linecache.getline(place.file, place.line)
    if place.columns is not None:
        begin, end = place.columns
        line = line.encode()[begin:end].decode(errors="replace")
    return textwrap.shorten(line.strip(), longest, placeholder=" ...")
