"""``arena replay --compare``: replays side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from .._compare._run import run
from .._compare._text import WIDTH, renderables
from .._files import REPORTS, check
from .._next import next_after
from ._reading import read_trace

__all__ = ["compare"]


def compare(traces: list[Path], settings: dict[str, Any], save: Path | None, force: bool, as_json: bool) -> None:
    """Replay all, show them side by side, and leave with 3 if any does not fit."""
    from ._replay import run as play

    if save:
        check(save, overwrite=force, endings=REPORTS)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    read = {path: read_trace(path) for path in dict.fromkeys(traces)}
    found = run(traces, settings, lambda trace, chosen: play(trace, chosen, console), read=read.__getitem__)
    written = found.save(save, overwrite=force) if save else None
    if as_json:
        print(json.dumps({**found.to_dict(), "wrote": str(written) if written else None}, indent=1))
    else:
        shown = Console(highlight=False, markup=False, width=WIDTH)
        for part in renderables(found):
            shown.print(part)
        if written:
            shown.print(f"wrote {written}", soft_wrap=True)
        to_see = written if written and written.suffix != ".json" else None
        then = next_after(to_see) if to_see else "the same with --save compare.html"
        shown.print(f"Next: {then}", soft_wrap=True)
    raise typer.Exit(0 if found.fits else 3)
