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
DAY = 24 * 3600 * 10**9  # nanoseconds
_TIME = re.compile(r"(\d{1,2}):(\d{2}):(\d{2})[.:](\d{1,9})")


class _Reader:
    """Numbers blocks, threads and streams as they come; the log has addresses and no date."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.threads: dict[str, int] = {}
        self.streams: dict[int, int] = {0: 0}
        self.blocks: dict[int, int] = {}
        self.begin: int | None = None
        self.days = 0
        self.last = 0

    def add(self, line: str) -> None:
        thread, time, action, pointer, size, stream = line.split(",")
        number = self.threads.setdefault(thread, len(self.threads))
        at = self.time(time)
        index = self.streams.setdefault(_number(stream), len(self.streams))
        if action == "allocate":
            block = len(self.trace)
            self.blocks[_number(pointer)] = block
            self.trace._append("allocate", at, number, block, int(size), index)
        elif action == "free":
            freed = self.blocks.pop(_number(pointer), None)  # none: it was live before the log began
            if freed is not None:
                self.trace._append("free", at, number, freed, 0, index)
        elif action == "allocate failure":
            self.trace._append("failure", at, number, 0, int(size), index)
        else:
            raise ValueError(f"no such action: {action!r}")

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


def read(trace: Trace, rows: Iterable[bytes], name: str) -> None:
    """Add the events of a log, without its header."""
    reader = _Reader(trace)
    for number, raw in enumerate(rows, 2):
        line = raw.decode("utf-8", "replace").strip()
        try:
            if line:
                reader.add(line)
        except (ValueError, OverflowError, TypeError) as error:
            raise TraceError(f"{name}, line {number}: {line[:80]!r} cannot be read: {error}") from None


def _number(text: str) -> int:
    if text in ("(nil)", ""):
        return 0
    value = int(text, 16) if text.lower().startswith("0x") else int(text)
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{text} is no address")
    return value


def lines_of(trace: Trace) -> Iterator[str]:
    """A log of the trace. RMM has no word for other events; blocks get addresses of their own."""
    yield HEADER
    sizes: dict[int, tuple[int, int]] = {}
    for event in trace:
        place = 512 * (event.block + 1)
        stream = f"{event.stream:#x}" if event.stream else "0"
        head = f"{event.thread},{_clock(event.time)}"
        if event.kind == "allocate":
            sizes[event.block] = (event.size, event.stream)
            yield f"{head},allocate,{place:#x},{event.size},{stream}"
        elif event.kind == "free" and event.block in sizes:
            size, index = sizes.pop(event.block)
            yield f"{head},free,{place:#x},{size},{f'{index:#x}' if index else '0'}"
        elif event.kind == "failure":
            yield f"{head},allocate failure,(nil),{event.size},{stream}"


def _clock(seconds: float) -> str:
    micros = round(seconds * 1e6)
    return (
        f"{micros // 3_600_000_000 % 24:02}:{micros // 60_000_000 % 60:02}:"
        f"{micros // 1_000_000 % 60:02}.{micros % 1_000_000:06}"
    )
