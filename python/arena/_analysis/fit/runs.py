"""A recorded run at one batch size, reduced to what scaling needs: sizes and operations of each allocation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..._inspect.snapshot import Line
from ..._trace import Trace
from ..._trace.read import KINDS
from ..._words.account import rounded
from ...errors import TraceError

__all__ = ["Key", "Operation", "Run", "live_at_peak", "peak_live", "peaks_by_key"]

ALLOCATE, FREE, RECORD_STREAM, TRIM, COMPACT = (
    KINDS.index(kind) for kind in ("allocate", "free", "record_stream", "trim", "compact")
)
HIGHEST_DEFAULT = 2  # handles up to this are default streams

Key = tuple[tuple[Line, ...], int]
"""What makes two allocations comparable: their lines, if recorded, and their stream."""


class Operation(NamedTuple):
    """An operation to replay. Allocations are numbered in order."""

    kind: int
    allocation: int
    stream: int


class Run:
    """A trace and its batch size."""

    def __init__(self, trace: Trace, batch: int, name: str) -> None:
        self.batch = batch
        self.name = name
        self.sizes: list[int] = []
        self.keys: list[Key] = []
        self.operations: list[Operation] = []
        self.has_lines = bool(trace.lines)
        self._read(trace)
        if not self.sizes:
            raise TraceError(f"{name} has no allocations: there is nothing to fit")

    def _read(self, trace: Trace) -> None:
        streams = _streams(trace)
        numbers: dict[int, int] = {}
        add, event = self.operations.append, trace._core.event
        for index in range(len(trace)):
            kind, _, _, block, size, stream, line = event(index)
            if kind == ALLOCATE:
                numbers[block] = len(self.sizes)
                add(Operation(kind, len(self.sizes), streams[stream]))
                self.sizes.append(size)
                self.keys.append((trace.lines.get(line, ()), streams[stream]))
            elif kind == FREE:
                if block in numbers:
                    add(Operation(kind, numbers.pop(block), 0))
            elif kind == RECORD_STREAM:
                if block in numbers:
                    add(Operation(kind, numbers[block], streams[stream]))
            elif kind in (TRIM, COMPACT):
                add(Operation(kind, 0, 0))

    def forget_lines(self) -> None:
        """Make this run comparable with one whose lines were not recorded."""
        self.has_lines = False
        self.keys = [((), stream) for _, stream in self.keys]

    def with_sizes(self, sizes: Sequence[int]) -> Trace:
        """The same run with other sizes."""
        trace = Trace()
        add = trace._core.add
        for time, (kind, allocation, stream) in enumerate(self.operations):
            add(kind, time * 1000, 0, allocation, sizes[allocation] if kind == ALLOCATE else 0, stream, 0)
        return trace


def _streams(trace: Trace) -> list[int]:
    """Renumber streams as a replay expects: 0 is the default stream."""
    numbers, following = [], 1
    for stream in range(max(1, trace._core.streams)):
        handle = trace._core.handle_of(stream)
        is_default = stream == 0 if handle == 0 else handle <= HIGHEST_DEFAULT
        numbers.append(0 if is_default else following)
        following += not is_default
    return numbers


def peak_live(run: Run, sizes: Sequence[int]) -> tuple[int, int]:
    """The peak of live bytes, and the index of the operation that reaches it."""
    known = {size: rounded(size) for size in set(sizes)}  # there are few distinct sizes
    taken = [known[size] for size in sizes]
    live = peak = place = 0
    for index, (kind, allocation, _) in enumerate(run.operations):
        if kind == ALLOCATE:
            live += taken[allocation]
            if live > peak:
                peak, place = live, index
        elif kind == FREE:
            live -= taken[allocation]
    return peak, place


def peaks_by_key(run: Run, only: Sequence[bool]) -> dict[Key, int]:
    """For each key on its own, the peak of the bytes that the selected allocations hold."""
    live: dict[Key, int] = {}
    peaks: dict[Key, int] = {}
    for kind, allocation, _ in run.operations:
        if kind not in (ALLOCATE, FREE) or not only[allocation]:
            continue
        key, size = run.keys[allocation], rounded(run.sizes[allocation])
        live[key] = live.get(key, 0) + (size if kind == ALLOCATE else -size)
        peaks[key] = max(peaks.get(key, 0), live[key])
    return peaks


def live_at_peak(run: Run, sizes: Sequence[int]) -> list[int]:
    """The allocations that are live at the peak."""
    _, place = peak_live(run, sizes)
    live: dict[int, None] = {}
    for kind, allocation, _ in run.operations[: place + 1]:
        if kind == ALLOCATE:
            live[allocation] = None
        elif kind == FREE:
            del live[allocation]
    return list(live)
