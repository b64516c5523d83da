"""The text of ``arena-trace 1``: ``a,<block>,<bytes>,<stream>``, ``f,<block>`` and ``s,<label>``, a line each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..errors import TraceError

if TYPE_CHECKING:
    from ._read import Trace

__all__ = ["MAGIC", "lines_of", "read"]

MAGIC = "# arena-trace 1"


class _Reader:
    """Numbers blocks as they come; a text may give them any numbers, and the same one again after a free."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.blocks: dict[int, int] = {}

    def add(self, line: str, at: int) -> None:
        kind, _, rest = line.partition(",")
        if kind == "a":
            block, size, stream = (int(field) for field in rest.split(","))
            if block < 0:
                raise ValueError(f"block {block} is below 0")
            if block in self.blocks:
                raise ValueError(f"block {block} is live already")
            self.blocks[block] = self.trace._allocate(at, 0, size, stream)
        elif kind == "f":
            freed = self.blocks.pop(int(rest), None)
            if freed is None:
                raise ValueError(f"block {rest} is not live")
            self.trace._append("free", at, 0, freed, 0, 0)
        elif kind == "s":
            self.trace.steps.append((len(self.trace), rest))
        elif line and not line.startswith("#"):
            raise ValueError("not a, f or s")


def read(trace: Trace, rows: Iterable[tuple[int, str]], name: str) -> None:
    """Add the events of a text, without its first line. It has no times: a line is a microsecond."""
    reader = _Reader(trace)
    for number, line in rows:
        try:
            reader.add(line, number * 1000)
        except (ValueError, TypeError, OverflowError) as error:
            raise TraceError(f"{name}, line {number}: {line[:60]!r} cannot be read: {error}") from None


def lines_of(trace: Trace) -> Iterator[str]:
    """A text of the trace. It has no word for other events; a scope is a step from where it begins."""
    yield f"{MAGIC} {_one_line(_source(trace))}".rstrip()
    live: set[int] = set()
    steps = iter(sorted(trace.steps, key=lambda step: step[0]))
    step = next(steps, None)
    for index, event in enumerate(trace):
        while step is not None and step[0] <= index:
            yield f"s,{_one_line(step[1])}"
            step = next(steps, None)
        if event.kind == "allocate":
            if event.block in live:  # a number that comes again, for which a replay frees what had it
                yield f"f,{event.block}"
            live.add(event.block)
            yield f"a,{event.block},{event.size},{event.stream}"
        elif event.kind == "free" and event.block in live:
            live.remove(event.block)
            yield f"f,{event.block}"
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
