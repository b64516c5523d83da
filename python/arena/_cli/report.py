"""``arena report``: shows a saved report or snapshot, or saves it in another format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .._analysis.load import load
from .._dask import text as _cluster
from .._dask.model import ClusterReport
from .._report import Report
from .._report.text import renderables
from .._util.console import Console
from .._util.files import REPORTS, check
from .._util.next_step import arena_command, next_after
from .options import FORCE, JSON, SAVE
from .say import say

__all__ = ["report"]


def report(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A report or snapshot saved as .json.")],
    save: Annotated[Path | None, typer.Option(metavar="FILE", help=SAVE)] = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE)] = False,
    as_json: Annotated[bool, typer.Option("--json", help=JSON)] = False,
) -> None:
    """Show a saved report or snapshot, or save it as a page.

    \b
    Examples:
      arena report snapshot.json
      arena report snapshot.json --save snapshot.html
    """
    found = load(file)
    made = found if isinstance(found, (Report, ClusterReport)) else Report.of(found)
    if save is not None:
        check(save, overwrite=force, endings=REPORTS)
    if as_json:
        print(json.dumps(made.to_dict(), indent=1))
    elif save is None:
        console = Console(width=80)
        for part in renderables(made) if isinstance(made, Report) else _cluster.renderables(made):
            console.print(part)
        console.print(f"Next: {arena_command('report', file, '--save', 'report.html')}", soft_wrap=True)
    if save is not None:
        written = made.save(save, overwrite=force)
        say(f"wrote {written}", err=as_json)
        say(f"Next: {next_after(written)}", err=as_json)
