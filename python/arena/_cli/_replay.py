"""``arena replay``: whether a recorded run fits, and what it would take."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .._files import REPORTS, check
from .._next import arena_command, exact_size, next_after
from .._numbers import as_device
from .._report._model import Holder
from .._report._text import timeline
from .._sizes import format_size
from .._snapshot import _figures
from .._trace import Replayed, Trace
from ..errors import OutOfMemoryError
from . import _compare
from ._moving import NO_COMPACT, assumed
from ._reading import read_trace

__all__ = ["replay"]

MOST_HELD = 4  # lines, scopes or sizes that are told
LONG = 2_000_000  # events from which a bar is shown


def replay(
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE", help="A recording, RMM's log, or PyTorch's snapshot with a history."),
    ],
    cap: Annotated[list[str] | None, typer.Option(help='The cap: "4GiB", "80%". Default: all of the device.')] = None,
    headroom: Annotated[list[str] | None, typer.Option(help="What is left free on the device.")] = None,
    growth: Annotated[list[str] | None, typer.Option(help="The largest piece taken at a time.")] = None,
    device: Annotated[list[str] | None, typer.Option(help='"sim:8GiB", or the number of a real device.')] = None,
    prices: Annotated[
        list[str] | None, typer.Option(help='Price table: "a100", "small", "free", or a file of arena measure.')
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Without virtual memory.")] = False,
    vmm: Annotated[bool, typer.Option("--vmm", help="With virtual memory: the default; after --plain, both.")] = False,
    no_compact: Annotated[bool, typer.Option("--no-compact", help=NO_COMPACT)] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Moving live data: the default; after --no-compact, both.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Side by side: several traces, or options that are given several times.")
    ] = False,
    save: Annotated[Path | None, typer.Option(help="Save the report of the peak: .html, .json or .txt.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Run a recorded program's allocations through an arena, and tell whether they fit.

    Exits with 3 if they do not. Example: arena replay run.arena --cap 4GiB --device sim:8GiB --save report.html

    Two at once: arena replay --compare a.arena b.arena, or arena replay run.arena --cap 4GiB --cap 6GiB
    """
    given: dict[str, list[Any]] = {"cap": cap or [], "headroom": headroom or [], "growth": growth or []}
    given["device"] = [as_device(name) for name in device or ()]
    given["prices"] = list(prices or ())
    given["vmm"] = [True, False] if plain and vmm else [not plain]
    given["compact"] = [True, False] if compact and no_compact else [not no_compact]
    if compare or len(traces) > 1 or any(len(values) > 1 for values in given.values()):
        _compare.compare(traces, {name: values for name, values in given.items() if values}, save, force, as_json)
    settings: dict[str, Any] = {name: values[0] for name, values in given.items() if values}
    trace = traces[0]
    if save:
        check(save, overwrite=force, endings=REPORTS)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    read = read_trace(trace)
    done = run(read, settings, console)
    written = done.report.save(save, overwrite=force) if save else None
    if as_json:
        print(json.dumps({**facts(done), "report": str(written) if written else None}, indent=1))
    else:
        again = [str(trace), *(("--device", device[0]) if device else ()), *(("--prices", prices[0]) if prices else ())]
        again += ["--no-compact"] if no_compact else []
        show(done, written, again)
    raise typer.Exit(0 if done.fits else 3)


def run(trace: Trace, settings: dict[str, Any], console: Console) -> Replayed:
    if len(trace) < LONG or not console.is_terminal:
        return trace.replay(**settings)
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(trace))
        return trace.replay(progress=lambda played, _: progress.update(task, completed=played), **settings)


def facts(done: Replayed) -> dict[str, Any]:
    return {
        "fits": done.fits,
        "events": done.events,
        "verdict": done.error.verdict if done.error else None,
        "requested": done.error.requested if done.error else None,
        "largest": done.error.largest if done.error else None,
        "largest_with_moving": done.error.largest_with_moving if done.error else None,
        "set_free_by_moving": done.error.set_free_by_moving if done.error else None,
        "priced_ms": done.priced_ms,
        "prices": done.prices,
        "compact": done.compact,
        "stats": _figures(done.stats),
        "moment": done.report.moment,
        "peak": dataclasses.asdict(done.peak),
        "held": {
            kind: [dataclasses.asdict(holder) for holder in found[:MOST_HELD]]
            for kind, found in (("lines", done.report.lines), ("scopes", done.report.scopes), ("sizes", sizes(done)))
        },
        "timeline": dataclasses.asdict(done.report.timeline) if done.report.timeline else None,
    }


def show(done: Replayed, written: Path | None, again: list[str]) -> None:
    stats, size = done.stats, format_size
    console = Console(highlight=False, markup=False, soft_wrap=True)
    cap = size(stats.cap)
    if done.error is None:
        console.print(f"fits: {done.events:,} events under a cap of {cap}")
    else:
        asked, largest = size(done.error.requested), size(done.error.largest)
        console.print(f"does not fit under a cap of {cap}: event {done.events - 1:,} asked for {asked}")
        console.print(f"{done.error.verdict}; the largest request that would have passed is {largest}")
        for line in by_moving(done.error):
            console.print(line)
    console.print(done.report.moment)
    for line in held(done):
        console.print(line)
    if done.report.timeline:
        for row in timeline(done.report.timeline):
            console.print(row)
    console.print(assumed(done.compact))
    console.print(f"peaks: {size(stats.peak_live)} live, {size(stats.peak_reserved)} reserved")
    console.print(f"{stats.driver_calls:,} driver calls, {stats.maps:,} maps, {stats.rebacked:,} re-backings")
    if done.priced_ms is not None:
        console.print(f"{done.priced_ms:.1f} ms of driver time by the price table {done.prices}")
    if written:
        console.print(f"wrote {written}")
    console.print(f"Next: {following(done, written, again)}")


def by_moving(error: OutOfMemoryError) -> Iterator[str]:
    """What moving live data would have changed, if anything."""
    if error.largest_with_moving > error.largest:
        yield f"without moving live data, that is; with moving it is {format_size(error.largest_with_moving)}"
    if error.set_free_by_moving:
        yield f"moving would have set {format_size(error.set_free_by_moving)} free, and this request would have passed"


def following(done: Replayed, written: Path | None, again: list[str]) -> str:
    if written:
        return next_after(written)
    if not done.fits:
        return arena_command("fit", again[0], *(["--no-compact"] if not done.compact else []))
    return arena_command("replay", *again, "--cap", exact_size(done.stats.peak_reserved), "--save", "report.html")


def held(done: Replayed) -> Iterator[str]:
    """Who held what was live then: lines if they were recorded, otherwise scopes, otherwise sizes."""
    report = done.report
    found = report.lines or report.scopes or sizes(done)
    live = report.account["live"]
    if found:
        yield f"{format_size(live)} were live then:"
    for holder in found[:MOST_HELD]:
        share = f"{holder.bytes / live:.0%}"
        yield f"  {format_size(holder.bytes):>10} {share:>4}  {holder.name}, {many(holder.blocks, 'block')}"
    rest = live - sum(holder.bytes for holder in found[:MOST_HELD])
    if found and rest:
        yield f"  {format_size(rest):>10} {rest / live:>4.0%}  others"


def sizes(done: Replayed) -> list[Holder]:
    """What was live by size, the most first."""
    name = "blocks of {} to {}"
    found = [
        Holder(name.format(format_size(size.low), format_size(size.high)), size.bytes, size.count)
        for size in done.report.live_sizes
        if size.count
    ]
    return sorted(found, key=lambda holder: -holder.bytes)


def many(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"
