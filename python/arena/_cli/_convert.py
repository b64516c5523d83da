"""``arena convert``: a trace for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import _files
from .._next import arena_command
from .._numbers import as_device
from .._trace import Trace
from .._trace._save import FORMATS, format_of, save_counters
from ..errors import UsageError
from ._reading import read_trace

__all__ = ["convert"]


def convert(
    source: Annotated[Path, typer.Argument(help="A recording, arena-trace 1 text, RMM's log, or PyTorch's snapshot.")],
    target: Annotated[
        Path, typer.Argument(help="A .arena, .trace, .trace.gz, .csv (RMM's log) or .json (Perfetto) file.")
    ],
    to: Annotated[str | None, typer.Option(help=f"If the name does not say it: {', '.join(FORMATS)}.")] = None,
    cap: Annotated[str | None, typer.Option(help="For Perfetto: the cap of the replay.")] = None,
    device: Annotated[str | None, typer.Option(help='For Perfetto: the device of the replay, "sim:8GiB".')] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Write a trace in another format.

    To Perfetto it is replayed first, so that reserved and every reason are seen; exits with 3 if it does not fit.
    Example: arena convert run.arena run.csv
    """
    form = format_of(target, to)
    _files.check(target, overwrite=force)
    settings: dict[str, Any] = {} if cap is None else {"cap": cap}
    settings |= {} if device is None else {"device": as_device(device)}
    if settings and form != "perfetto":
        raise UsageError(f"--{next(iter(settings))} is for perfetto, whose counters come from a replay")
    trace = read_trace(source)
    fits = True
    if form == "perfetto":
        fits = counters(trace, target, settings, force)
    else:
        trace.save(target, to=form, overwrite=force)
    facts = {"events": len(trace), "problem": trace.problem, "format": form, "wrote": str(target), "fits": fits}
    if as_json:
        print(json.dumps(facts))
    else:
        then = (
            "open it at ui.perfetto.dev or chrome://tracing" if form == "perfetto" else arena_command("replay", target)
        )
        print(f"wrote {target}: {len(trace):,} events\nNext: {then}")
    raise typer.Exit(0 if fits else 3)


def counters(trace: Trace, target: Path, settings: dict[str, Any], force: bool) -> bool:
    done = trace.replay(compact=True, **settings)
    save_counters(trace, done, target, overwrite=force)
    if done.error is not None:
        typer.echo(f"arena: it does not fit: the counters end at event {done.events - 1:,}", err=True)
    return done.fits
