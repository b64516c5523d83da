"""A trace in memory, and the reader of arena's own format. ``formats/`` has the others."""

from __future__ import annotations

import json
import operator
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, SupportsIndex

from .. import _core
from .._inspect.snapshot import Line
from .._util.files import to_read
from .._util.shown import Shown
from ..errors import TraceError
from . import container
from .failures import Failure, Survived, find_end, find_failures, find_survived
from .formats import rmm, text, torch
from .formats.text import MOST_STREAMS
from .rows import PACKED, Rows

if TYPE_CHECKING:
    from .._analysis.replay import Replayed

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
MOST_LINES = 1 << 32
NOTE_COST = 256  # bytes of memory for a line or a step
MOST_NOTES = 1 << 20  # lines and frameworks, beyond four for each event: each takes a few microseconds
ROWS = (PACKED, text.MAGIC[:8].encode(), rmm.HEADER[:8].encode())  # the first bytes of text formats
PICKLE = b"\x80"
WRONG = (TraceError, ValueError, TypeError, AttributeError, OverflowError, RecursionError, struct.error)  # bad chunks


def is_trace(start: bytes) -> bool:
    """Whether a file that starts with these bytes looks like one that :meth:`Trace.read` can read."""
    return start.startswith((container.MAGIC, PICKLE, *ROWS))


def memory_left() -> int:
    """Free memory of the machine: a small file may unpack to any number of events, so that must be limited."""
    try:
        with open("/proc/meminfo") as file:
            return next(int(row.split()[1]) << 10 for row in file if row.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


class Event(NamedTuple):
    """An event of a trace. Fields that do not apply to its kind are 0."""

    kind: str
    """``allocate``, ``free``, ``record_stream``, ``failure``, ``reserved``, ``trim``, ``compact``, ``reserve``,
    ``set_cap``, ``scope_begin`` or ``scope_end``."""
    time: float
    """Seconds since the recording began."""
    thread: int
    block: int
    """The number of the block, counted over all allocations; for a scope, over all scopes."""
    size: int
    stream: int
    line: int
    """Its key in :attr:`Trace.lines` and :attr:`Trace.frameworks`."""


class Trace(Shown):
    """The recorded requests of a program to an arena. Read one with :meth:`read`.

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
        """Facts about the run: device, settings, program."""
        self.lines: dict[int, tuple[Line, ...]] = {}
        """The lines of Python that allocated, by number."""
        self.frameworks: dict[int, str] = {}
        """The frameworks that allocated, by the same numbers: ``CuPy``, ``PyTorch``, ..."""
        self.steps: list[tuple[int, str]] = []
        """Where steps of the program begin: the index of the next event, and a label."""
        self.problem: str = ""
        """What is wrong with the end of the file, or empty. Everything before that was read."""
        self._ending: dict[str, Any] = {}  # how the run ended, from the recording
        self._failures: tuple[int, tuple[Failure, ...]] | None = None
        room = memory_left()
        self._core = _core.Trace(room)
        self._most = room // NOTE_COST
        self._notes = 0  # lines and frameworks that were read, also those that replaced others
        self._allocated = 0

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Trace:
        """Read a trace: arena's own format, a PyTorch snapshot with history, ``arena-trace 1`` text or an RMM log.

        The last two may be compressed with gzip.
        """
        try:
            with to_read(path).open("rb") as file:
                start = file.read(16)
                file.seek(0)
                if start.startswith(ROWS):
                    return cls._read_rows(Rows(file, str(path)), str(path))
                if start.startswith(PICKLE):
                    trace = cls()
                    torch.read(trace, file, str(path))
                    return trace
                return cls._read_own(file, str(path))
        except OSError as error:
            raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error

    @classmethod
    def _read_own(cls, file: BinaryIO, name: str) -> Trace:
        trace = cls(container.read_header(file, name))
        ended = False
        for chunk in container.read_chunks(file):
            if isinstance(chunk, str):
                trace.problem = chunk
                break
            try:
                ended = trace._add(chunk)
            except WRONG as error:
                trace.problem = f"chunk at event {len(trace)}: {error}"
                break
        if not ended and not trace.problem:
            trace.problem = "the recording has no end: the last events may be missing"
        return trace

    def _add(self, chunk: container.Chunk) -> bool:
        if chunk.tag == container.EVENTS:
            self._core.add_chunk(*container.read_events(chunk.data))
        elif chunk.tag == container.LINES:
            for number, lines in json.loads(chunk.data).items():
                self.lines[self._line_number(number)] = tuple(Line(str(f), int(n), str(name)) for f, n, name in lines)
        elif chunk.tag == container.FRAMEWORKS:
            for number, name in json.loads(chunk.data).items():
                self.frameworks[self._line_number(number)] = str(name)
        elif chunk.tag == container.STEPS:
            for number, label in json.loads(chunk.data):
                if int(number) < 0:
                    raise ValueError(f"a step at event {int(number)}")
                self._add_steps([(int(number), str(label))])
        elif chunk.tag == container.END:
            ending = json.loads(chunk.data).get("ended")
            self._ending = ending if isinstance(ending, dict) else {}
        return chunk.tag == container.END

    def _line_number(self, text: str) -> int:
        number = int(text)
        if not 0 <= number < MOST_LINES:
            raise ValueError(f"line number {text[:60]} is not below {MOST_LINES}")
        self._notes += 1
        if self._notes > MOST_NOTES + 4 * len(self):
            raise TraceError(f"{self._notes:,} lines, but only {len(self):,} events; that is no recording")
        self._check_notes(1)
        return number

    def _add_steps(self, steps: list[tuple[int, str]]) -> None:
        self._check_notes(len(steps))
        self.steps += steps

    def _check_notes(self, more: int) -> None:
        if len(self.lines) + len(self.frameworks) + len(self.steps) + more > self._most:
            raise TraceError(f"more than {self._most} lines and steps, which do not fit in the remaining memory")

    @classmethod
    def _read_rows(cls, found: Rows, name: str) -> Trace:
        _, head = next(found, (1, ""))
        if head.strip() == rmm.HEADER:
            trace = cls({"source": "RMM's log"})
            rmm.read(trace, found, name)
        elif head.startswith(text.MAGIC):
            trace = cls({"source": head.removeprefix(text.MAGIC).strip(), "timed": False})
            text.read(trace, found, name)
        else:
            raise TraceError(f"{name} is not a trace: its first line is not {text.MAGIC!r}")
        return trace

    def _append(self, kind: str, time: int, thread: int, block: int, size: int, stream: int, line: int = 0) -> None:
        if stream >= MOST_STREAMS:
            raise ValueError(f"stream {stream} of at most {MOST_STREAMS}")
        self._core.add(KINDS.index(kind), time, thread, block, size, stream, line)

    def _allocate(self, time: int, thread: int, size: int, stream: int, line: int = 0) -> int:
        """Append an allocation and return its block. Consecutive numbers take few bytes."""
        self._append("allocate", time, thread, self._allocated, size, stream, line)
        self._allocated += 1
        return self._allocated - 1

    def save(
        self, path: str | os.PathLike[str], *, to: str | None = None, overwrite: bool = False, **settings: Any
    ) -> Path:
        """Save the trace. The extension selects the format: ``.arena``, ``.trace`` or ``.trace.gz`` (``arena-trace 1``
        text), ``.csv`` (RMM log), ``.json`` (counters for Perfetto). ``to`` overrides it: ``arena``, ``text``, ``rmm``
        or ``perfetto``.

        Counters come from a replay with these ``settings``. Replaces a file only with ``overwrite=True``.
        """
        from .save import save  # late: writers import this module

        return save(self, path, to=to, overwrite=overwrite, settings=settings)

    def __len__(self) -> int:
        return len(self._core)

    def __getitem__(self, index: SupportsIndex) -> Event:
        index = operator.index(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"event {index} of {len(self)}")
        kind, time, *rest = self._core.event(index % len(self))
        return Event(KINDS[kind], time / 1e9, *rest)

    def __iter__(self) -> Iterator[Event]:
        event = self._core.event
        for index in range(len(self)):
            kind, time, thread, block, size, stream, line = event(index)
            yield Event(KINDS[kind], time / 1e9, thread, block, size, stream, line)

    @property
    def timed(self) -> bool:
        """Whether its events have real times."""
        return bool(self.facts.get("timed", True))

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The failed requests of the recorded run, in order."""
        if self._failures is None or self._failures[0] != len(self):  # events may have been added
            self._failures = len(self), find_failures(self)
        return self._failures[1]

    @property
    def ended_by(self) -> Failure | None:
        """The failed request that ended the recorded run; ``None`` if it finished or ended for another reason."""
        return find_end(self.failures, self._ending)

    @property
    def survived(self) -> Survived:
        """The failed requests after which the program continued."""
        return find_survived(self.failures, self.ended_by)

    def _of_kind(self, kind: str) -> Iterator[Event]:
        return (event for event in self if event.kind == kind)

    def scope_name(self, scope: int) -> str:
        """Return the name of a scope by its number."""
        return self._core.scope_name(scope)

    def replay(self, **settings: Any) -> Replayed:
        """Replay the trace in an arena of its own; see :class:`Replayed`. Settings are those of :class:`Arena`.

        Without ``device`` it runs on a simulated device as large as the recorded one, or of 80 GiB. ``prices`` selects
        the price table for driver time: a name, or the path of a file that ``arena measure`` wrote.
        """
        from .._analysis.replay import replay  # late: a replay needs an arena, and arenas record traces

        return replay(self, **settings)
