"""Figures over time as counters in the Trace Event Format, which Perfetto and chrome://tracing open."""

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
"""Seconds, of any clock, and figures of the account."""

COUNTERS = {
    "reserved": {reason: reason for reason in REASONS},
    "cap": {"cap": "bytes"},
    "largest request": {"largest": "bytes"},
    "device free": {"device_free": "bytes"},
}
"""Figures in one counter are stacked by chrome://tracing, and neighbours in Perfetto."""


def write(
    path: str | os.PathLike[str],
    samples: Iterable[Sample],
    *,
    name: str = "arena",
    marks: Iterable[tuple[float, str]] = (),
    overwrite: bool = False,
) -> Path:
    """Write a trace of counters, and of marks: moments that have a name. Samples are read one at a time; figures that
    one lacks are left out there.
    """

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
    # Counters are a process's. The thread is the main one: to Perfetto a thread 0 is the kernel's idle one.
    common = {"pid": pid, "tid": pid}
    yield {"ph": "M", "name": "process_name", "ts": 0, **common, "args": {"name": name}}
    yield {"ph": "M", "name": "thread_name", "ts": 0, **common, "args": {"name": "MainThread"}}
    for seconds, figures in samples:
        if not math.isfinite(seconds):
            raise UsageError(f"a sample's time is {seconds!r}; it must be a number of seconds")
        microseconds = round(seconds * 1e6, 3)
        for counter, series in COUNTERS.items():
            values = {title: figures[figure] for figure, title in series.items() if figure in figures}
            if values:
                yield {"ph": "C", "name": counter, "ts": microseconds, **common, "args": values}
    for seconds, label in marks:
        yield {"ph": "i", "s": "p", "name": label, "ts": round(seconds * 1e6, 3), **common}
