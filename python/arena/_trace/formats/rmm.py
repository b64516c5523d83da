"""Reads and writes RMM's log of allocations: ``Thread,Time,Action,Pointer,Size,Stream``, one per line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ... import _core
from ..._words.account import ALIGNMENT
from ...errors import TraceError

if TYPE_CHECKING:
    from ..read import Trace
    from ..rows import Rows

__all__ = ["HEADER", "lines_of", "read"]

HEADER = "Thread,Time,Action,Pointer,Size,Stream"
UNKNOWN = 0x10000
_TIME = re.compile(r"(\d{1,2}):(\d{2}):(\d{2})[.:](\d{1,9})")


ACTIONS = {"allocate": 0, "free": 1, "allocate failure": 2}


def read(trace: Trace, rows: Rows, name: str) -> None:
    """Add the events of a log, without its header."""
    reader = _core.RmmRows(trace._core)
    while True:
        rows.hand_to(reader.read)  # nearly all of it
        number, line = next(rows, (0, ""))
        if number == 0:
            return
        rows.check_left(len(trace))
        try:
            if line.strip():
                _add(reader, line.strip())
        except (ValueError, OverflowError, TypeError) as error:
            raise TraceError(f"{name}, line {number}: {line[:80]!r} cannot be read: {error}") from None


def _add(reader: _core.RmmRows, line: str) -> None:
    thread, time, action, pointer, size, stream = line.split(",")
    if action not in ACTIONS:
        raise ValueError(f"{action!r} is not an action")
    length = int(size)
    if not 0 <= length < 1 << 64:
        raise ValueError(f"{length} is not a size")
    reader.add(thread, _time_of_day(time), ACTIONS[action], _number(pointer), length, _number(stream))


def _time_of_day(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a time of day")
    hours, minutes, seconds, part = found.groups()
    return ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 10**9 + int(part.ljust(9, "0"))


def _number(text: str) -> int:
    """Read an address or a stream: hexadecimal, with or without ``0x``."""
    value = 0 if text in ("(nil)", "") else int(text, 16)
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{text} is not an address")
    return value


def lines_of(trace: Trace) -> Iterator[str]:
    """The trace as a log. RMM has no other kinds of events; blocks get artificial addresses."""
    yield HEADER
    live: dict[int, tuple[int, int]] = {}
    for event in trace:
        place = f"{ALIGNMENT * (event.block + 1) % (1 << 64):#x}"  # a file may contain any block number
        head = f"{event.thread},{_clock(event.time)}"
        if event.kind == "allocate" and event.block in live:  # a reused number: a replay frees the old block, too
            size, stream = live.pop(event.block)
            yield f"{head},free,{place},{size},{_stream(trace, stream)}"
        if event.kind == "allocate":
            live[event.block] = (event.size, event.stream)
            yield f"{head},allocate,{place},{event.size},{_stream(trace, event.stream)}"
        elif event.kind == "record_stream" and event.block in live:
            live[event.block] = (live[event.block][0], event.stream)
        elif event.kind == "free" and event.block in live:
            size, stream = live.pop(event.block)
            yield f"{head},free,{place},{size},{_stream(trace, stream)}"
        elif event.kind == "failure":
            yield f"{head},allocate failure,(nil),{event.size},{_stream(trace, event.stream)}"


def _stream(trace: Trace, number: int) -> str:
    """The stream's handle; if unknown, a number that is not a default stream."""
    handle = trace._core.handle_of(number) or (number and UNKNOWN + number)
    return f"{handle:#x}" if handle else "0"


def _clock(seconds: float) -> str:
    micros = round(seconds * 1e6)
    return (
        f"{micros // 3_600_000_000 % 24:02}:{micros // 60_000_000 % 60:02}:"
        f"{micros // 1_000_000 % 60:02}.{micros % 1_000_000:06}"
    )
