"""Traces as commands read them."""

from __future__ import annotations

from pathlib import Path

import typer

from .._trace import Trace
from ..errors import TraceError

__all__ = ["read_trace"]


def read_trace(path: Path) -> Trace:
    """Read a trace, and say what is wrong with its end. One of which nothing is left is refused: it fits anywhere."""
    trace = Trace.read(path)
    if trace.problem and not len(trace):
        raise TraceError(f"{path} has no events that could be read: {trace.problem}")
    if trace.problem:
        typer.echo(f"arena: {path}: {trace.problem}", err=True)
    return trace
