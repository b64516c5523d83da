"""RMM's log of allocations: ``Thread,Time,Action,Pointer,Size,Stream``, a line each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..errors import TraceError

if TYPE_CHECKING:
    from ._read import Trace

__all__ = ["HEADER", "lines_of", "read"]

HEADER = "Thread,Time,Action,Pointer,Size,Stream"
PER_THREAD = 2  # the handle of the default stream that each thread has
UNKNOWN = 0x10000
DAY = 24 * 3600 * 10**9  # nanoseconds
_TIME = re.compile(r"(\d{1,2}):(\d{2}):(\d{2})[.:](\d{1,9})")


class _Reader:
    """Numbers blocks, threads and streams as they come; the log has addresses and no date."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.threads: dict[str, int] = {}
        self.streams: dict[tuple[int, int], int] = {}
        self.blocks: dict[int, tuple[int, int]] = {}
        self.begin: int | None = None
        self.days = 0
        self.last = 0

    def add(self, line: str) -> None:
        thread, time, action, pointer, size, stream = line.split(",")
        number = self.threads.setdefault(thread, len(self.threads))
        at, index, length = self.time(time), self.stream(stream, number), int(size)
        if action == "allocate":
            if _number(pointer) in self.blocks:  # what is given again was freed, whatever the log lost
                self.free(at, number, pointer, None)
            self.blocks[_number(pointer)] = self.trace._allocate(at, number, length, index), index
        elif action == "free":
            self.free(at, number, pointer, index)
        elif action == "allocate failure":
            self.trace._append("failure", at, number, 0, length, index)
        else:
            raise ValueError(f"no such action: {action!r}")

    def free(self, at: int, thread: int, pointer: str, stream: int | None) -> None:
        block, own = self.blocks.pop(_number(pointer), (None, None))
        if block is None:  # it was live before the log began
            return
        if stream not in (None, own):  # there a free waits for the stream that it names
            self.trace._append("record_stream", at, thread, block, 0, stream or 0)
        self.trace._append("free", at, thread, block, 0, 0)

    def stream(self, text: str, thread: int) -> int:
        handle = _number(text)
        key = handle, thread if handle == PER_THREAD else 0
        if key not in self.streams:
            self.streams[key] = len(self.streams)
            self.trace._core.set_handle(self.streams[key], handle)
        return self.streams[key]

    def time(self, text: str) -> int:
        found = _TIME.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no time of a day")
        hours, minutes, seconds, part = found.groups()
        day = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 10**9 + int(part.ljust(9, "0"))
        if day < self.last - DAY // 2:  # past midnight; a little back is only another thread
            self.days += 1
        self.last = day
        at = day + self.days * DAY
        if self.begin is None:
            self.begin = at
        return max(0, at - self.begin)


def read(trace: Trace, rows: Iterable[tuple[int, str]], name: str) -> None:
    """Add the events of a log, without its header."""
    reader = _Reader(trace)
    for number, line in rows:
        try:
            if line.strip():
                reader.add(line.strip())
        except (ValueError, OverflowError, TypeError) as error:
            raise TraceError(f"{name}, line {number}: {line[:80]!r} cannot be read: {error}") from None


def _number(text: str) -> int:
    """Addresses and streams are in hex; not every system writes 0x before them."""
    value = 0 if text in ("(nil)", "") else int(text, 16)
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{text} is no address")
    return value


def lines_of(trace: Trace) -> Iterator[str]:
    """A log of the trace. RMM has no word for other events; blocks get addresses of their own."""
    yield HEADER
    live: dict[int, tuple[int, int]] = {}
    for event in trace:
        place = f"{512 * (event.block + 1) % (1 << 64):#x}"  # the number of a block is whatever the file said
        head = f"{event.thread},{_clock(event.time)}"
        if event.kind == "allocate" and event.block in live:  # a number that comes again: a replay frees what had it
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
    """Its handle; where that is not known, a number that is no default stream's."""
    handle = trace._core.handle_of(number) or (number and UNKNOWN + number)
    return f"{handle:#x}" if handle else "0"


def _clock(seconds: float) -> str:
    micros = round(seconds * 1e6)
    return (
        f"{micros // 3_600_000_000 % 24:02}:{micros // 60_000_000 % 60:02}:"
        f"{micros // 1_000_000 % 60:02}.{micros % 1_000_000:06}"
    )
