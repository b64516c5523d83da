"""``arena convert``: converts a trace for other tools."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .._trace import Trace
from .._trace.save import FORMATS, format_of, save_counters
from .._util import files
from .._util.arguments import as_device
from .._util.next_step import arena_command
from .._words.format import counted
from ..errors import UsageError
from .codes import EXIT_MISFIT
from .options import FORCE, JSON, TRACE
from .reading import read_trace
from .say import say

__all__ = ["convert"]


def convert(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help=TRACE)],
    target: Annotated[
        Path,
        typer.Argument(metavar="TARGET", help="A .arena, .trace, .trace.gz, .csv (RMM) or .json (Perfetto) file."),
    ],
    to: Annotated[
        str | None, typer.Option(metavar="FORMAT", help=f"Format, if not by extension: {', '.join(FORMATS)}.")
    ] = None,
    cap: Annotated[str | None, typer.Option(metavar="SIZE", help="For Perfetto: the cap of the replay.")] = None,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help='For Perfetto: the device of the replay, "sim:8GiB".')
    ] = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE)] = False,
    as_json: Annotated[bool, typer.Option("--json", help=JSON)] = False,
) -> None:
    """Convert a trace to text, an RMM log, or counters for Perfetto.

    The counters come from a replay of the trace. Exit code 3: it does not fit.

    \b
    Examples:
      arena convert run.arena run.csv
      arena convert run.arena run.json --device sim:8GiB
    """
    form = format_of(target, to)
    files.check(target, overwrite=force)
    settings: dict[str, Any] = {} if cap is None else {"cap": cap}
    settings |= {} if device is None else {"device": as_device(device)}
    if settings and form != "perfetto":
        raise UsageError(f"--{next(iter(settings))} is only for perfetto, whose counters come from a replay")
    trace = read_trace(source, to_replay=form == "perfetto")
    fits: bool | None = None if trace.ended_by else True
    if form == "perfetto":
        fits = counters(trace, target, settings, force)
    else:
        trace.save(target, to=form, overwrite=force)
    facts = {"events": len(trace), "problem": trace.problem, "format": form, "wrote": str(target), "fits": fits}
    facts["ended_by"] = dataclasses.asdict(trace.ended_by) if trace.ended_by else None
    if trace.ended_by:
        say(f"arena: {trace.ended_by.sentences(len(trace))}", err=True)
    if as_json:
        print(json.dumps(facts))
    else:
        then = (
            "open it at ui.perfetto.dev or chrome://tracing" if form == "perfetto" else arena_command("replay", target)
        )
        say(f"wrote {target}: {counted(len(trace), 'event')}")
        say(f"Next: {then}")
    raise typer.Exit(EXIT_MISFIT if fits is False else 0)  # an unfinished run is converted all the same


def counters(trace: Trace, target: Path, settings: dict[str, Any], force: bool) -> bool | None:
    done = trace.replay(compact=True, **settings)
    save_counters(trace, done, target, overwrite=force)
    if done.error is not None:
        say(f"arena: it does not fit: the counters end at event {done.events - 1:,}", err=True)
    return done.fits
