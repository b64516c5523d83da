"""Writes a trace as arena's own format, ``arena-trace 1`` text, an RMM log, or counters for Perfetto."""

from __future__ import annotations

import bisect
import json
import os
import warnings
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _core
from .._export import perfetto
from .._inspect.snapshot import _figures
from .._util import files
from .._util.sizes import format_size
from ..errors import UsageError
from . import container
from .formats import rmm, text

if TYPE_CHECKING:
    from .._analysis.replay import Replayed
    from .read import Trace

__all__ = ["FORMATS", "format_of", "save", "save_counters"]

FORMATS = ("arena", "text", "rmm", "perfetto")
ENDINGS = {".arena": "arena", ".trace": "text", ".trace.gz": "text", ".csv": "rmm", ".json": "perfetto"}


def format_of(path: str | os.PathLike[str], to: str | None) -> str:
    """The format to write: ``to``, or by default the one that the file's extension selects."""
    name = Path(path).name
    if to is not None:
        if to not in FORMATS:
            raise UsageError(f"to={to!r} is not a format; write {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
        if name.endswith(".gz") and to not in ("text", "rmm"):
            raise UsageError(f"{str(path)!r} ends with .gz, but only text and RMM logs are compressed with gzip")
        return to
    found = next((form for ending, form in ENDINGS.items() if name.endswith(ending)), None)
    if found is None and name.endswith(".csv.gz"):
        raise UsageError(f"{str(path)!r} could be an RMM log or arena-trace 1; say which: rmm or text")
    if found is None:
        *most, last = ENDINGS
        raise UsageError(f"{str(path)!r} does not end with {', '.join(most)} or {last}")
    return found


def save(
    trace: Trace, path: str | os.PathLike[str], *, to: str | None, overwrite: bool, settings: dict[str, Any]
) -> Path:
    form = format_of(path, to)
    target = files.check(path, overwrite=overwrite)
    if form == "perfetto":
        done = trace.replay(**{"compact": True, **settings})
        if done.error is not None:
            warnings.warn(f"the trace did not fit: the counters end at event {done.events - 1}", stacklevel=3)
        return save_counters(trace, done, target, overwrite=overwrite)
    if settings:
        raise UsageError(f"{next(iter(settings))}= is only for perfetto, whose counters come from a replay")
    if form == "arena":
        return files.write(target, _own(trace), overwrite=overwrite)
    lines = (text if form == "text" else rmm).lines_of(trace)
    data = (f"{line}\n".encode("utf-8", "backslashreplace") for line in lines)
    return files.write(target, _packed(data) if target.suffix == ".gz" else data, overwrite=overwrite)


def save_counters(trace: Trace, done: Replayed, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write the account of a replay over time for Perfetto, with marks for steps, scopes and the end of the run."""
    samples = ((seconds, _figures(stats)) for seconds, stats in done.samples)
    return perfetto.write(path, samples, name="arena", marks=_marks(trace, done.events), overwrite=overwrite)


def _marks(trace: Trace, played: int) -> Iterator[tuple[float, str]]:
    for index, label in trace.steps:
        if index < played:
            yield trace[index].time, label
    for event in trace._of_kind("scope_begin"):
        if event.time <= trace[played - 1].time:
            yield event.time, trace.scope_name(event.block)
    if ended_by := trace.ended_by:
        yield ended_by.time, f"the recorded run failed: a request of {format_size(ended_by.requested)}"


def _own(trace: Trace) -> Iterator[bytes]:
    """Chunks of arena's own format. A truncated trace gets no end, so that its readers are warned again."""
    yield container.header(trace.facts)
    encoder, written = _core.Encoder(), 0
    steps = sorted(trace.steps, key=lambda step: step[0])
    while written < len(trace):
        first, events, next_block, time, lines, data = trace._core.encode(encoder)
        yield from container.lines({number: trace.lines[number] for number in lines if number in trace.lines})
        names = trace.frameworks
        yield from container.frameworks({number: names[number] for number in lines if number in names})
        written = first + events
        so_far = bisect.bisect_left(steps, written, key=lambda step: step[0])
        yield from container.steps(steps[:so_far])
        del steps[:so_far]
        yield container.events(first, events, next_block, time, data)
    yield from container.steps(steps)
    if not trace.problem:
        end = {"events": len(trace), "overflowed": False, "ended": trace._ending}
        yield container.chunk(container.END, json.dumps(end).encode())


def _packed(data: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(9, wbits=31)  # gzip, without a timestamp
    for piece in data:
        yield packer.compress(piece)
    yield packer.flush()
