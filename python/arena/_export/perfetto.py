"""Writes figures over time as counters in the Trace Event Format, for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .._util import files
from .._words.account import REASONS
from ..errors import UsageError

__all__ = ["COUNTERS", "Sample", "events", "write"]

Sample = tuple[float, Mapping[str, int]]
"""Seconds of any clock, and the account at that time."""

COUNTERS = {
    "reserved": {reason: reason for reason in REASONS},
    "cap": {"cap": "bytes"},
    "largest request": {"largest": "bytes"},
    "device free": {"device_free": "bytes"},
}
"""chrome://tracing stacks the figures of one counter; Perfetto shows them next to each other."""


def write(
    path: str | os.PathLike[str],
    samples: Iterable[Sample],
    *,
    name: str = "arena",
    marks: Iterable[tuple[float, str]] = (),
    overwrite: bool = False,
) -> Path:
    """Write a trace of counters and named marks. Samples are consumed one at a time, and may lack some figures."""

    def chunks() -> Iterator[bytes]:
        yield b'{"displayTimeUnit": "ms", "traceEvents": ['
        for number, event in enumerate(events(samples, name=name, pid=os.getpid(), marks=marks)):
            yield (",\n" if number else "\n").encode() + json.dumps(event, allow_nan=False).encode()
        yield b"\n]}\n"

    return files.write(path, chunks(), overwrite=overwrite)


def events(
    samples: Iterable[Sample], *, name: str, pid: int, marks: Iterable[tuple[float, str]] = ()
) -> Iterator[dict[str, Any]]:
    """The events of the trace: the names of the process and its thread, then the counters, then the marks."""
    # Counters belong to a process. Use its main thread: Perfetto takes thread 0 for the kernel's idle thread.
    common = {"pid": pid, "tid": pid}
    yield {"ph": "M", "name": "process_name", "ts": 0, **common, "args": {"name": name}}
    yield {"ph": "M", "name": "thread_name", "ts": 0, **common, "args": {"name": "MainThread"}}
    for seconds, figures in samples:
        if not math.isfinite(seconds):
            raise UsageError(f"the time of a sample is {seconds!r}; it must be a finite number of seconds")
        microseconds = round(seconds * 1e6, 3)
        for counter, series in COUNTERS.items():
            values = {title: figures[figure] for figure, title in series.items() if figure in figures}
            if values:
                yield {"ph": "C", "name": counter, "ts": microseconds, **common, "args": values}
    for seconds, label in marks:
        yield {"ph": "i", "s": "p", "name": label, "ts": round(seconds * 1e6, 3), **common}
