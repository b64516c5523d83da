"""Reads and writes ``arena-trace 1`` text. Its lines: ``a,<block>,<bytes>,<stream>`` (allocate), ``f,<block>`` (free),
``x,<bytes>,<stream>`` (a failed request) and ``s,<label>`` (a step).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ... import _core
from ...errors import TraceError

if TYPE_CHECKING:
    from ..read import Trace
    from ..rows import Rows

__all__ = ["MAGIC", "lines_of", "read"]

MAGIC = "# arena-trace 1"
MOST_BLOCKS = 1 << 64  # block numbers are below this
MOST_STREAMS = 1 << 20
ROW_TIME = 1000  # nanoseconds: a text has no times


def read(trace: Trace, rows: Rows, name: str) -> None:
    """Add the events of a text, without its first line. It has no times, so each line counts as a microsecond."""
    reader = _core.TextRows(trace._core)

    def keep_steps() -> None:
        try:
            trace._add_steps(reader.take_steps())
        except TraceError as error:
            raise TraceError(f"{name}: {error}") from None

    while True:
        rows.hand_to(reader.read, keep_steps)  # nearly all of it
        number, line = next(rows, (0, ""))
        if number == 0:
            return
        rows.check_left(len(trace))
        try:
            _add(trace, reader, line, number)
        except (ValueError, TypeError, OverflowError) as error:
            raise TraceError(f"{name}, line {number}: {line[:60]!r} cannot be read: {error}") from None


def _add(trace: Trace, reader: _core.TextRows, line: str, number: int) -> None:
    kind, _, rest = line.partition(",")
    if kind == "a":
        block, size, stream = (int(field) for field in rest.split(","))
        if not 0 <= block < MOST_BLOCKS:
            raise ValueError(f"block {block} is below 0" if block < 0 else f"block {block} is above {MOST_BLOCKS - 1}")
        if stream >= MOST_STREAMS:
            raise ValueError(f"stream {stream} of at most {MOST_STREAMS}")
        reader.allocate(number, block, size, stream)
    elif kind == "f":
        freed = int(rest)
        if not 0 <= freed < MOST_BLOCKS:
            raise ValueError(f"block {rest} is not live")
        reader.free(number, freed)
    elif kind == "x":
        size, stream = (int(field) for field in rest.split(","))
        trace._append("failure", number * ROW_TIME, 0, 0, size, stream)
    elif kind == "s":  # the last line, if it has no line end
        trace._add_steps([(len(trace), rest)])
    elif line and not line.startswith("#"):
        raise ValueError("it does not start with a, f, x or s")


def lines_of(trace: Trace) -> Iterator[str]:
    """The trace as text, which has no other kinds of events. The beginning of a scope becomes a step."""
    yield f"{MAGIC} {_one_line(_source(trace))}".rstrip()
    live: set[int] = set()
    steps = iter(sorted(trace.steps, key=lambda step: step[0]))
    step = next(steps, None)
    for index, event in enumerate(trace):
        while step is not None and step[0] <= index:
            yield f"s,{_one_line(step[1])}"
            step = next(steps, None)
        if event.kind == "allocate":
            if event.block in live:  # a reused number: a replay frees the old block, too
                yield f"f,{event.block}"
            live.add(event.block)
            yield f"a,{event.block},{event.size},{event.stream}"
        elif event.kind == "free" and event.block in live:
            live.remove(event.block)
            yield f"f,{event.block}"
        elif event.kind == "failure":
            yield f"x,{event.size},{event.stream}"
        elif event.kind == "scope_begin":
            yield f"s,{_one_line(trace.scope_name(event.block))}"
    while step is not None:
        yield f"s,{_one_line(step[1])}"
        step = next(steps, None)


def _source(trace: Trace) -> str:
    facts = trace.facts
    return str(facts["source"]) if "source" in facts else f"source=arena {facts.get('arena', '')}"


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())
