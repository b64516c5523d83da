"""``arena demo``: a real program on a card that CuPy's pool is too large for, and the report."""

from __future__ import annotations

import dataclasses
import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .. import _core
from .._demo import Comparison, compare
from .._inspect.snapshot import _figures
from .._report.text import renderables
from .._util import files
from .._util.next_step import record_elsewhere
from .._util.sizes import format_size
from ..errors import DriverError

__all__ = ["demo"]

PAGE = Path("arena-demo.html")


def demo(
    save: Annotated[
        Path | None,
        typer.Option(
            help="Where the report goes: .html, .json, .txt. Default: arena-demo.html, or the next free name."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
    show_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """See it in action: a real program under a cap at which CuPy's pool fails.

    Takes a few seconds and needs neither a GPU nor a network.

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
        tell(done, written)
    if show_page and not webbrowser.open(written.absolute().as_uri()):
        typer.echo(f"arena: no browser could be opened; open {written} yourself", err=True)


def facts(done: Comparison) -> dict[str, object]:
    cupy = {**dataclasses.asdict(done.death), "needs": done.cupy_needs, "model": True}
    return {
        "trace": "pipeline",
        "events": done.events,
        "cap": done.cap,
        "cupy": cupy,
        "arena": {"fits": True, "priced_ms": done.priced_ms, "stats": _figures(done.stats)},
    }


def tell(done: Comparison, written: Path) -> None:
    console = Console(highlight=False, markup=False, width=80)
    size, death, stats = format_size, done.death, done.stats
    free, largest = size(death.free), size(death.largest)
    for text in (
        f"A data pipeline (filter, join, group-by, sort), recorded from a real program on NumPy: {done.events:,} "
        f"allocations and frees, never more than {size(stats.peak_live)} alive. It runs where {size(done.cap)} may be "
        "taken, on a simulated device.",
        f"CuPy's pool dies at event {death.event:,}: {size(death.requested)} asked for, {free} free, but no piece is "
        f"larger than {largest}. It would need about {size(done.cupy_needs)}. (By a model of its source that "
        "comes with arena; the pool itself needs a GPU.)",
        f"arena runs it to the end: never more than {size(stats.peak_reserved)} taken, {stats.driver_calls:,} driver "
        f"calls, {done.priced_ms:.0f} ms by the simulated driver's prices. This is its report of the moment at which "
        "CuPy's pool dies:",
    ):
        console.print(text, end="\n\n")
    for part in renderables(done.report):
        console.print(part)
    console.print(f"\nwrote {written}: this report as a page", soft_wrap=True)
    console.print(f"Next: {next_step()}", soft_wrap=True)


def next_step() -> str:
    """What works on this machine. The demo itself ran on the simulated driver, which leaves a real one its name."""
    try:
        _core.Driver.open("cuda")
    except DriverError:
        return record_elsewhere()
    return "arena run --cap 80% --report out.html YOUR_SCRIPT.py"
