"""PyTorch's memory snapshots, as far as they have a history: ``device_traces``. Read as plain data only."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from .._snapshot import Line
from ..errors import TraceError

if TYPE_CHECKING:
    from ._read import Trace

__all__ = ["read"]


class _PlainUnpickler(pickle.Unpickler):
    """A pickle can name functions to be called when it is read. This one knows none."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise TraceError(f"it names {module}.{name}, and only plain data is read from a pickle")

    def persistent_load(self, pid: object) -> NoReturn:
        raise TraceError("it refers to objects outside, and only plain data is read from a pickle")


def read(trace: Trace, file: BinaryIO, name: str) -> None:
    """Add the events of the first device that has any."""
    try:
        data = _PlainUnpickler(file).load()
    except TraceError as error:
        raise TraceError(f"{name} is not read: {error}") from None
    except Exception as error:  # a broken pickle raises anything
        raise TraceError(f"{name} is no whole pickle: {type(error).__name__}: {error}") from None
    histories = data.get("device_traces") if isinstance(data, dict) else None
    if not isinstance(histories, (list, tuple)):
        raise TraceError(f"{name} is no snapshot of PyTorch: it has no device_traces")
    device = next((number for number, history in enumerate(histories) if history), None)
    if device is None:
        raise TraceError(f"{name} has no history: record it with torch.cuda.memory._record_memory_history()")
    trace.facts.update({"source": "PyTorch's snapshot", "number": device})
    reader = _Reader(trace)
    for number, entry in enumerate(histories[device]):
        try:
            reader.add(entry)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise TraceError(f"{name}, entry {number} of device {device} cannot be read: {error!r}") from None


class _Reader:
    """Numbers blocks, streams and lines as they come."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.blocks: dict[int, int] = {}
        self.streams: dict[int, int] = {0: 0}
        self.lines: dict[tuple[Line, ...], int] = {}
        self.begin: int | None = None

    def add(self, entry: dict[str, Any]) -> None:
        action = entry["action"]
        if action not in ("alloc", "free_requested", "oom"):
            return
        time = int(entry.get("time_us", 0)) * 1000
        self.begin = time if self.begin is None else self.begin
        at = max(0, time - self.begin)
        stream = self.streams.setdefault(int(entry.get("stream", 0)), len(self.streams))
        if action == "free_requested":
            block = self.blocks.pop(int(entry["addr"]), None)  # none: it was live before the history began
            if block is not None:
                self.trace._append("free", at, 0, block, 0, stream)
            return
        kind, block = ("allocate", len(self.trace)) if action == "alloc" else ("failure", 0)
        if action == "alloc":
            self.blocks[int(entry["addr"])] = block
        self.trace._append(kind, at, 0, block, int(entry["size"]), stream, self.line(entry.get("frames", ())))

    def line(self, frames: Iterable[dict[str, Any]]) -> int:
        lines = tuple(Line(str(f["filename"]), int(f["line"]), str(f["name"])) for f in frames)
        if not lines:
            return 0
        number = self.lines.setdefault(lines, len(self.lines) + 1)
        self.trace.lines[number] = lines
        return number
