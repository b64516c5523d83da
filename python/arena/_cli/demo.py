"""``arena demo``: a recorded program under a cap at which CuPy's pool fails, and the arena's report."""

from __future__ import annotations

import dataclasses
import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from .. import _core
from .._demo import Comparison, compare
from .._inspect.snapshot import _figures
from .._report.text import renderables
from .._util import files
from .._util.console import Console
from .._util.next_step import record_elsewhere
from .._util.sizes import format_size
from ..errors import DriverError
from .options import FORCE, JSON
from .say import say

__all__ = ["demo"]

PAGE = Path("arena-demo.html")


def demo(
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Save the report: .html, .json or .txt. Default: arena-demo.html, or the next free name.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE)] = False,
    show_page: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help=JSON)] = False,
) -> None:
    """See arena run a program under a cap at which CuPy's pool fails.

    Takes a few seconds. Needs neither a GPU nor a network.

    \b
    Examples:
      arena demo
      arena demo --open --save demo.html
    """
    default = files.free_name(PAGE) if PAGE.exists() and not force else PAGE
    target = files.check(save or default, overwrite=force, endings=files.REPORTS)
    done = compare()
    written = done.report.save(target, overwrite=force)
    if as_json:
        print(json.dumps({**facts(done), "report": str(written)}, indent=1))
    else:
        show(done, written)
    if show_page and not webbrowser.open(written.absolute().as_uri()):
        say(f"arena: no browser could be opened; open {written} yourself", err=True)


def facts(done: Comparison) -> dict[str, object]:
    cupy = {**dataclasses.asdict(done.death), "needs": done.cupy_needs, "model": True}
    return {
        "trace": "pipeline",
        "events": done.events,
        "cap": done.cap,
        "cupy": cupy,
        "arena": {"fits": True, "priced_ms": done.priced_ms, "stats": _figures(done.stats)},
    }


def show(done: Comparison, written: Path) -> None:
    console = Console(width=80)
    size, death, stats = format_size, done.death, done.stats
    free, largest = size(death.free), size(death.largest)
    for text in (
        f"A data pipeline (filter, join, group-by, sort), recorded from a real NumPy program: {done.events:,} "
        f"allocations and frees, at most {size(stats.peak_live)} live. Here it runs under a cap of {size(done.cap)}, "
        "on a simulated device.",
        f"CuPy's pool fails at event {death.event:,}, a request of {size(death.requested)}: {free} is free, but no "
        f"piece is larger than {largest}. It would need about {size(done.cupy_needs)}. (This is a model of CuPy's "
        "source code that comes with arena; the pool itself needs a GPU.)",
        f"arena runs it to the end: at most {size(stats.peak_reserved)} reserved, {stats.driver_calls:,} driver "
        f"calls, {done.priced_ms:.0f} ms by the simulated driver's price table. This is its report from the moment "
        "when CuPy's pool fails:",
    ):
        console.say(text, "")
    for part in renderables(done.report):
        console.print(part)
    console.print()
    console.print(f"wrote {written}: this report as a page", soft_wrap=True)
    console.print(f"Next: {next_step()}", soft_wrap=True)


def next_step() -> str:
    """A command that works on this machine. The demo's simulated driver does not hide a real one."""
    try:
        _core.Driver.open("cuda")
    except DriverError:
        return record_elsewhere()
    return "arena run --cap 80% --report out.html YOUR_SCRIPT.py"
