"""``arena measure``: measures the cost of driver calls on this machine."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from .._analysis.measure import ROUNDS, SECONDS, Measured, Progress
from .._analysis.measure import measure as run
from .._analysis.prices import Row
from .._util import files
from .._util.arguments import as_device
from .._util.console import Console
from .._util.next_step import arena_command
from .._util.sizes import format_size
from ..errors import UsageError
from .options import DEVICE, FORCE, JSON
from .say import say

__all__ = ["measure"]

FILE = Path("arena.prices")
MOST_ROUNDS, MOST_SECONDS = 100_000, 86_400.0
WIDTH = 80


def measure(
    device: Annotated[str, typer.Option(metavar="DEVICE", help=DEVICE)] = "0",
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save the prices. Default: arena.prices, or the next free name."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE)] = False,
    rounds: Annotated[
        int, typer.Option(metavar="N", help="Rounds on an idle device; a quarter of that under load.")
    ] = ROUNDS,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time limit; less time means fewer rounds.")
    ] = SECONDS,
    as_json: Annotated[bool, typer.Option("--json", help=JSON)] = False,
) -> None:
    """Measure the cost of driver calls and save a price table.

    Measures on an idle device and under load. Takes up to a minute and needs
    about 130 MiB of free memory on the device.

    \b
    Examples:
      arena measure --save rtx.prices
      arena replay run.arena --prices rtx.prices
    """
    check("--rounds", rounds, 3, MOST_ROUNDS)
    check("--seconds", seconds, 0, MOST_SECONDS)
    default = files.free_name(FILE) if FILE.exists() and not force else FILE
    target = files.check(save or default, overwrite=force)
    errors = Console(stderr=True, soft_wrap=True)
    try:
        with shown_progress(errors) as progress:
            found = run(as_device(device), rounds=rounds, seconds=seconds, progress=progress)
    except KeyboardInterrupt:
        say("arena: interrupted; nothing was written, and nothing is left on the device", err=True)
        raise typer.Exit(130) from None
    written = found.save(target, overwrite=force)
    if as_json:
        print(json.dumps({**facts(found), "wrote": str(written)}, indent=1))
    else:
        show(found, written)


def check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"{name} {value:g} is not accepted; write a number from {low:g} to {high:g}")


@contextlib.contextmanager
def shown_progress(console: Console) -> Iterator[Progress | None]:
    """Show the current round, if this is a terminal."""
    if not console.is_terminal:
        yield None
        return
    with console.status("starting") as status:
        yield lambda phase, done, total: status.update(f"{phase}: round {done + 1} of {total}")


def facts(found: Measured) -> dict[str, Any]:
    return {
        "facts": found.facts,
        "simulated": found.simulated,
        "virtual_memory": found.virtual_memory,
        "prices": [asdict(row) for row in found.rows],
    }


def show(found: Measured, written: Path) -> None:
    console = Console(soft_wrap=True, width=WIDTH)
    console.print(f"device: {found.facts['device']}, {found.facts['memory']}")
    console.print(f"driver: {found.facts['driver']}")
    console.print(f"platform: {found.facts['platform']}")
    if found.simulated:
        console.print("simulated: these are prices from its price table, not measured times")
    if not found.virtual_memory:
        console.print("no virtual memory on this device: only cuMemAlloc and cuMemFree are measured")
    console.say("", f"microseconds per call, medians of {found.facts['rounds'].replace(', ', ' rounds, ')}")
    console.say("spread: half of all calls are within ± that of the median", "")
    console.print(table("idle", found, loaded=False))
    if any(row.load for row in found.rows):
        console.print()
        console.print(table("under load", found, loaded=True))
    for sentence in sentences(found):
        console.print()
        console.print(sentence, soft_wrap=False)
    console.say("", f"wrote {written}")
    console.print(f"Next: {arena_command('fit', 'TRACE', '--prices', written)}")


def by_call(found: Measured) -> dict[str, list[Row]]:
    calls: dict[str, list[Row]] = {}
    for row in found.rows:
        calls.setdefault(row.call, []).append(row)
    return calls


def table(title: str, found: Measured, *, loaded: bool) -> Table:
    """A row per call, a column per size. Costs that do not depend on the size are in the first column."""
    made = Table(box=None, padding=(0, 1), show_header=True)
    made.add_column(title, no_wrap=True)
    for name in (*map(format_size, found.sizes), "spread", *(["waited"] if loaded else [])):
        made.add_column(name, justify="right", no_wrap=True)
    for call, rows in by_call(found).items():
        figures = [row.load if loaded else row.idle for row in rows]
        cells = [figure_text(figure.median) if figure else "?" for figure in figures]
        cells += [""] * (len(found.sizes) - len(cells))
        known = [figure for figure in figures if figure and figure.median > 0]
        spread = max(((figure.high - figure.low) / 2 / figure.median for figure in known), default=0.0)
        waits = max(map(waited_share, rows))
        made.add_row(call, *cells, f"{spread:.0%}", *([f"{waits:.0%}" if waits else "no"] if loaded else []))
    return made


def figure_text(microseconds: float) -> str:
    return f"{microseconds:,.0f}" if microseconds >= 1000 else f"{microseconds:.1f}"


def waited_share(row: Row) -> float:
    return row.waited / row.load.rounds if row.load else 0.0


def sentences(found: Measured) -> Iterator[str]:
    """Describe what the load changed."""
    calls = by_call(found)
    if not any(row.load for row in found.rows):
        yield "The device could not be kept busy, so nothing is known about calls under load."
        return
    waiting = [call for call, rows in calls.items() if max(map(waited_share, rows)) > 0.5]
    if waiting:
        yield (
            f"{listed(waiting)} waited for work queued in another stream, so most of the time under load is that wait. "
            "A program blocks in such a call while the device is busy."
        )
    remapping = [
        call
        for call in ("cuMemSetAccess", "cuMemUnmap")
        if call in calls and all(row.load and not row.waited for row in calls[call])
    ]
    if remapping:
        yield f"{listed(remapping)} never waited for queued work."
    slower = {call: change(rows) for call, rows in calls.items() if call not in waiting and change(rows) >= 1.5}
    if slower:
        yield f"Slower under load: {', '.join(f'{call} {times:.1f} times' for call, times in slower.items())}."


def listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def change(rows: list[Row]) -> float:
    """The largest factor by which a call is slower under load; 1 if the difference is below a microsecond."""
    known = [(row.idle.median, row.load.median) for row in rows if row.load]
    return max((load / idle for idle, load in known if idle > 0 and load - idle >= 1), default=1.0)
