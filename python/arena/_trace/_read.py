"""A trace in memory, read from arena's own format or from the text format ``arena-trace 1``."""

from __future__ import annotations

import gzip
import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from .. import _core, _files
from .._snapshot import Line
from ..errors import TraceError
from . import _file, _rmm, _torch

if TYPE_CHECKING:
    from ._replay import Replayed

__all__ = ["Event", "Trace"]

KINDS = (
    "",
    "allocate",
    "free",
    "record_stream",
    "failure",
    "reserved",
    "trim",
    "compact",
    "reserve",
    "set_cap",
    "scope_begin",
    "scope_end",
)
TEXT_MAGIC = b"# arena-trace 1"


class Event(NamedTuple):
    """Something that happened. What does not apply to its kind is 0."""

    kind: str
    """``allocate``, ``free``, ``record_stream``, ``failure``, ``reserved``, ``trim``, ``compact``, ``reserve``,
    ``set_cap``, ``scope_begin`` or ``scope_end``."""
    time: float
    """Seconds since the recording began."""
    thread: int
    block: int
    """The number of the block among all allocations; of a scope, among all scopes."""
    size: int
    stream: int
    line: int
    """The number of its lines in :attr:`Trace.lines`."""


class Trace:
    """What a program asked of an arena. Read with :meth:`read`.

    >>> import arena, tempfile
    >>> pool = arena.Arena(device="sim:1GiB")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with pool.record(f"{folder}/run.arena"):
    ...         pool.allocate(1000).free()
    ...     trace = arena.Trace.read(f"{folder}/run.arena")
    >>> [event.kind for event in trace]
    ['allocate', 'reserved', 'free']
    """

    def __init__(self, facts: dict[str, Any] | None = None) -> None:
        self.facts: dict[str, Any] = facts or {}
        """What is known of the run: device, settings, program."""
        self.lines: dict[int, tuple[Line, ...]] = {}
        """The lines of Python that allocated, by number."""
        self.problem: str = ""
        """What is wrong with the end of the file, if it does not end well; all before that was read."""
        self.timed: bool = True
        """Whether the times of its events are those of a clock."""
        self._core = _core.Trace()

    @classmethod
    def read(cls, path: str | Path) -> Trace:
        """Read a trace: arena's own format, PyTorch's snapshot with a history, or, packed by gzip or not, the text of
        ``arena-trace 1`` or RMM's log.
        """
        source = Path(path)
        try:
            with source.open("rb") as file:
                start = file.read(16)
                file.seek(0)
                if start[:2] == b"\x1f\x8b":
                    return cls._read_text(io.BytesIO(_gunzip(file, str(path))), str(path))
                if start.startswith((TEXT_MAGIC[:8], _rmm.HEADER[:8].encode())):
                    return cls._read_text(file, str(path))
                if start[:1] == b"\x80":  # a pickle
                    trace = cls()
                    _torch.read(trace, file, str(path))
                    return trace
                return cls._read_own(file, str(path))
        except OSError as error:
            raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error

    @classmethod
    def _read_own(cls, file: BinaryIO, name: str) -> Trace:
        trace = cls(_file.read_header(file, name))
        ended = False
        for chunk in _file.read_chunks(file):
            if isinstance(chunk, str):
                trace.problem = chunk
                break
            try:
                ended = trace._add(chunk)
            except (TraceError, ValueError, struct.error) as error:
                trace.problem = f"chunk at event {len(trace)}: {error}"
                break
        if not ended and not trace.problem:
            trace.problem = "the recording was not ended: the last events may be missing"
        return trace

    def _add(self, chunk: _file.Chunk) -> bool:
        if chunk.tag == _file.EVENTS:
            _, _, next_block, time = struct.unpack_from("<QQQQ", chunk.data)
            self._core.add_chunk(next_block, time, chunk.data[32:])
        elif chunk.tag == _file.LINES:
            for number, lines in json.loads(chunk.data).items():
                self.lines[int(number)] = tuple(Line(str(f), int(n), str(name)) for f, n, name in lines)
        return chunk.tag == _file.END

    @classmethod
    def _read_text(cls, file: BinaryIO, name: str) -> Trace:
        head = file.readline().decode("utf-8", "replace").strip()
        if head == _rmm.HEADER:
            trace = cls({"source": "RMM's log"})
            _rmm.read(trace, file, name)
            return trace
        if not head.startswith(TEXT_MAGIC.decode()):
            raise TraceError(f"{name} is no trace: its first line is not {TEXT_MAGIC.decode()!r}")
        trace = cls({"source": head.removeprefix(TEXT_MAGIC.decode()).strip()})
        trace.timed = False  # they are numbers of lines
        for number, raw in enumerate(file, 2):
            try:
                trace._add_text(raw.decode().rstrip("\n"), number)
            except (ValueError, IndexError, TypeError, OverflowError) as error:
                raise TraceError(f"{name}, line {number}: {raw[:60]!r} cannot be read: {error}") from None
        return trace

    def _add_text(self, line: str, number: int) -> None:
        kind, *fields = line.split(",")
        if kind == "a":
            block, size, stream = (int(field) for field in fields)
            if stream >= 1 << 20:
                raise ValueError(f"stream {stream} of at most {1 << 20}")
            self._append("allocate", number * 1000, 0, block, size, stream)
        elif kind == "f":
            (block,) = (int(field) for field in fields)
            self._append("free", number * 1000, 0, block, 0, 0)
        elif kind not in ("s", "") and not kind.startswith("#"):
            raise ValueError("not a, f or s")

    def _append(self, kind: str, time: int, thread: int, block: int, size: int, stream: int, line: int = 0) -> None:
        self._core.add(KINDS.index(kind), time, thread, block, size, stream, line)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write it as RMM's log, a ``.csv`` file. Refuses to overwrite unless told."""
        target = _files.check(path, overwrite=overwrite, endings=(".csv",))
        return _files.write(target, (f"{line}\n".encode() for line in _rmm.lines_of(self)), overwrite=overwrite)

    def __len__(self) -> int:
        return len(self._core)

    def __getitem__(self, index: int) -> Event:
        if not -len(self) <= index < len(self):
            raise IndexError(f"event {index} of {len(self)}")
        kind, time, *rest = self._core.event(index % len(self))
        return Event(KINDS[kind], time / 1e9, *rest)

    def __iter__(self) -> Iterator[Event]:
        return (self[index] for index in range(len(self)))

    def scope_name(self, scope: int) -> str:
        """Return the name of a scope, by its number."""
        return self._core.scope_name(scope)

    def replay(self, **settings: Any) -> Replayed:
        """Run it through an arena of its own; see :class:`Replayed`. Settings are those of :class:`Arena`.

        Without ``device`` it runs on a simulated device of the size of the recorded one, or of 80 GiB.
        """
        from ._replay import replay

        return replay(self, **settings)


def _gunzip(file: BinaryIO, name: str) -> bytes:
    try:
        with gzip.open(file) as unpacked:
            data = unpacked.read(MOST_TEXT + 1)
    except (OSError, EOFError) as error:
        raise TraceError(f"{name} cannot be unpacked: {error}") from None
    if len(data) > MOST_TEXT:
        raise TraceError(f"{name} unpacks to more than {MOST_TEXT} bytes")
    return data


MOST_TEXT = 1 << 32
