"""Reads the history (``device_traces``) of PyTorch's memory snapshots, as plain data only."""

from __future__ import annotations

import io
import operator
import pickle
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from ... import _core
from ..._inspect.snapshot import Line, no_collection
from ...errors import TraceError

if TYPE_CHECKING:
    from ..read import Trace

__all__ = ["read"]

LARGEST = 1 << 64
GROWTH = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
WRONG = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


class _PlainUnpickler(pickle.Unpickler):
    """A pickle can name functions to call while it is read. This unpickler refuses them."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise TraceError(f"it names {module}.{name}, but only plain data is read from a pickle")

    def persistent_load(self, pid: object) -> NoReturn:
        raise TraceError("it refers to external objects, but only plain data is read from a pickle")


def read(trace: Trace, file: BinaryIO, name: str) -> None:
    """Add the events of the first device that has any."""
    data = _load(file, name)
    histories = data.get("device_traces") if isinstance(data, dict) else None
    if not isinstance(histories, (list, tuple)):
        raise TraceError(f"{name} is not a PyTorch snapshot: it has no device_traces")
    device = next((number for number, history in enumerate(histories) if history), None)
    if device is None:
        raise TraceError(f"{name} has no history: record it with torch.cuda.memory._record_memory_history()")
    trace.facts.update({"source": "PyTorch's snapshot", "number": device})
    place = "its segments"
    try:
        history = list(histories[device])
        segments = [one for one in data.get("segments") or () if one.get("device", device) == device]
        reader = _Reader(trace, data.get("external_annotations") or (), device)
        place = f"the history of device {device}"
        reader.begin_with(history, segments)
        for number, entry in enumerate(history):
            place = f"entry {number} of device {device}"
            reader.add(entry)
    except WRONG as error:
        raise TraceError(f"{name}, {place} cannot be read: {error!r}") from None


def _load(file: BinaryIO, name: str) -> Any:
    try:
        content = file.read()
        _core.check_pickle(content)
        with no_collection():
            return _PlainUnpickler(io.BytesIO(content)).load()
    except TraceError as error:
        raise TraceError(f"{name} cannot be read: {error}") from None
    except Exception as error:  # a broken pickle may raise anything
        raise TraceError(f"{name} is not a complete pickle: {type(error).__name__}: {error}") from None


class _Reader:
    """Converts entries to events; numbers blocks, streams and lines in order of appearance."""

    def __init__(self, trace: Trace, annotations: Iterable[dict[str, Any]], device: int) -> None:
        self.trace = trace
        self.blocks: dict[int, int] = {}
        self.streams: dict[int, int] = {}
        self.lines: dict[tuple[Line, ...], int] = {}
        self.known: dict[int, int] = {}  # line numbers by the id of the list of frames
        self.begin = 0
        self.reserved = 0
        labels = [
            (_whole(note["time_us"]) * 1000, _text(note["name"]))
            for note in annotations
            if note.get("stage", "START") == "START" and note.get("device", device) == device
        ]
        # By time alone: comparing long names that many notes share could take hours.
        self.labels = sorted(labels, key=operator.itemgetter(0))[::-1]

    def begin_with(self, history: list[dict[str, Any]], segments: list[dict[str, Any]]) -> None:
        """Add what was already live when the history began: later than the program did."""
        self.begin = _whole(history[0].get("time_us", 0)) * 1000 if isinstance(history[0], dict) else 0
        grown = sum(GROWTH.get(entry["action"], 0) * _whole(entry["size"]) for entry in history if _is_whole(entry))
        self.reserved = max(0, sum(_whole(segment["total_size"]) for segment in segments) - grown)
        if self.reserved:
            self.trace._append("reserved", 0, 0, 0, self.reserved, 0)
        for entry in _live_before(history, segments):
            self.allocate(entry, 0)

    def add(self, entry: dict[str, Any]) -> None:
        action, size = _text(entry["action"]), _whole(entry["size"])
        time = _whole(entry.get("time_us", 0)) * 1000
        while self.labels and self.labels[-1][0] <= time:
            self.trace.steps.append((len(self.trace), self.labels.pop()[1]))
        at = max(0, time - self.begin)
        if action == "alloc":
            self.free(_whole(entry["addr"]), at)  # an address that is handed out again was freed
            self.allocate(entry, at)
        elif action == "free_requested":
            self.free(_whole(entry["addr"]), at)
        elif action == "oom":
            self.trace._append("failure", at, 0, 0, size, self.stream(entry), self.line(entry.get("frames", ())))
        elif action in GROWTH:
            self.reserved = max(0, self.reserved + GROWTH[action] * size)
            self.trace._append("reserved", at, 0, 0, self.reserved, 0)

    def allocate(self, entry: dict[str, Any], at: int) -> None:
        line = self.line(entry.get("frames", ()))
        address, size = _whole(entry["addr"]), _whole(entry["size"])
        self.blocks[address] = self.trace._allocate(at, 0, size, self.stream(entry), line)

    def free(self, address: int, at: int) -> None:
        block = self.blocks.pop(address, None)
        if block is not None:
            self.trace._append("free", at, 0, block, 0, 0)

    def stream(self, entry: dict[str, Any]) -> int:
        handle = _whole(entry.get("stream", 0))
        if handle not in self.streams:
            self.streams[handle] = len(self.streams)
            self.trace._core.set_handle(self.streams[handle], handle)
        return self.streams[handle]

    def line(self, frames: Any) -> int:
        """The number of an entry's lines. Entries share lists of frames, which live as long as the snapshot."""
        if id(frames) not in self.known:
            self.known[id(frames)] = self.number(frames)
        return self.known[id(frames)]

    def number(self, frames: Iterable[dict[str, Any]]) -> int:
        lines = tuple(Line(_text(f["filename"]), _whole(f["line"]), _text(f["name"])) for f in frames)
        if not lines:
            return 0
        number = self.lines.setdefault(lines, len(self.lines) + 1)
        self.trace.lines[number] = lines
        return number


def _whole(value: Any) -> int:
    """Accept numbers of up to 64 bits only: longer ones could be chosen so that a dict of them takes hours to fill."""
    if not isinstance(value, int) or not -LARGEST < value < LARGEST:
        raise TypeError(f"a {type(value).__name__} that is not a number of up to 64 bits")
    return value


def _text(value: Any) -> str:
    """Accept strings only: formatting or hashing a pickled object that contains itself many times would never end."""
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} instead of a string")
    return value


def _is_whole(entry: Any) -> bool:
    """Whether an entry is complete. Others are refused later, with their index."""
    if not isinstance(entry, dict) or not isinstance(entry.get("action"), str):
        return False
    return all(isinstance(one, int) and abs(one) < LARGEST for one in (entry.get("size"), entry.get("addr", 0)))


def _live_before(history: list[dict[str, Any]], segments: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Blocks that are freed, or live at the end, but were never allocated in the history."""
    seen: set[int] = set()
    for entry in filter(_is_whole, history):
        if entry["action"] in ("alloc", "free_requested") and entry.get("addr") not in seen:
            seen.add(entry["addr"])
            if entry["action"] == "free_requested":
                yield {**entry, "frames": ()}  # the frames are those of the free
    lists: set[int] = set()
    for segment in segments:
        address = _whole(segment["address"])
        if id(segment["blocks"]) in lists:
            raise ValueError("two segments share a list of blocks")  # a small file could repeat it without end
        lists.add(id(segment["blocks"]))
        for block in segment["blocks"]:
            address = _whole(block.get("address", address))
            if block["state"] == "active_allocated" and address not in seen:
                size = block.get("requested_size", block["size"])
                yield {"addr": address, "size": size, "stream": segment["stream"], "frames": block.get("frames", ())}
            address += _whole(block["size"])
