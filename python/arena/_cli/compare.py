"""``arena replay --compare``: replays side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from .._analysis.compare.run import run
from .._analysis.compare.text import WIDTH, renderables
from .._analysis.replay import Replayed
from .._trace import Trace
from .._util.console import Console
from .._util.files import REPORTS, check
from .._util.next_step import next_after
from .codes import exit_code
from .reading import read_trace

__all__ = ["compare"]

Play = Callable[[Trace, dict[str, Any], Console], Replayed]


def compare(
    play: Play, traces: list[Path], settings: dict[str, Any], save: Path | None, force: bool, as_json: bool
) -> None:
    """Replay all and show them side by side; exit with 3 if one does not fit, with 4 if that is unknown for one."""
    if save:
        check(save, overwrite=force, endings=REPORTS)
    console = Console(stderr=True, soft_wrap=True)
    read = {path: read_trace(path) for path in dict.fromkeys(traces)}
    found = run(traces, settings, lambda trace, chosen: play(trace, chosen, console), read=read.__getitem__)
    written = found.save(save, overwrite=force) if save else None
    if as_json:
        print(json.dumps({**found.to_dict(), "wrote": str(written) if written else None}, indent=1))
    else:
        shown = Console(width=WIDTH)
        for part in renderables(found):
            shown.print(part)
        if written:
            shown.print(f"wrote {written}", soft_wrap=True)
        to_see = written if written and written.suffix != ".json" else None
        then = next_after(to_see) if to_see else "run it again with --save compare.html"
        shown.print(f"Next: {then}", soft_wrap=True)
    raise typer.Exit(exit_code(found.fits))
