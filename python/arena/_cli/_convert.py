"""``arena convert``: a trace for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .._trace import Trace

__all__ = ["convert"]


def convert(
    source: Annotated[Path, typer.Argument(help="A recording, RMM's log, or PyTorch's snapshot with a history.")],
    target: Annotated[Path, typer.Argument(help="RMM's log: a .csv file.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Turn a trace into RMM's log.

    Example: arena convert run.arena run.csv
    """
    trace = Trace.read(source)
    written = trace.save(target, overwrite=force)
    if as_json:
        print(json.dumps({"events": len(trace), "problem": trace.problem, "wrote": str(written)}))
        return
    if trace.problem:
        typer.echo(f"arena: {source}: {trace.problem}", err=True)
    print(f"wrote {written}: {len(trace):,} events\nNext: arena replay {written}")
