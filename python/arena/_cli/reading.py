"""Reads traces for commands."""

from __future__ import annotations

from pathlib import Path

from .._trace import Trace
from ..errors import TraceError
from .say import say

__all__ = ["read_trace"]


def read_trace(path: Path, *, to_replay: bool = True) -> Trace:
    """Read a trace, and print what is wrong with its end. Without allocations it is refused for a replay: it would fit
    anywhere.
    """
    trace = Trace.read(path)
    if trace.problem and not len(trace):
        raise TraceError(f"{path} has no readable events: {trace.problem}")
    if trace.problem:
        say(f"arena: {path}: {trace.problem}", err=True)
    if to_replay and not any(event.kind in ("allocate", "failure") for event in trace):
        raise TraceError(
            f"{path} has no allocations: the recorded arena was not used. To record CuPy's allocations, run "
            "arena run --record FILE PROGRAM"
        )
    return trace
