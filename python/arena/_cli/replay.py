"""``arena replay``: replays a recorded run, and shows whether it fits."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .._analysis.replay import Replayed
from .._inspect.holders import Holder
from .._inspect.snapshot import _figures
from .._report.text import timeline
from .._trace import Trace
from .._util.arguments import as_device
from .._util.console import Console
from .._util.files import REPORTS, check
from .._util.next_step import arena_command, exact_size, next_after, record_again
from .._util.sizes import format_size
from .._words.format import counted
from ..errors import OutOfMemoryError
from . import compare as _compare
from .codes import exit_code
from .failures import about_failures
from .moving import NO_COMPACT, assumed
from .options import CAP, DEVICE, FORCE, GROWTH, HEADROOM, JSON, PLAIN, PRICES, SAVE, TRACE
from .reading import read_trace

__all__ = ["replay"]

MOST_HELD = 4  # lines, scopes or sizes shown
LONG = 2_000_000  # events from which a progress bar is shown


def replay(
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE", help=TRACE),
    ],
    cap: Annotated[list[str] | None, typer.Option(metavar="SIZE", help=f"{CAP} Default: the device.")] = None,
    headroom: Annotated[list[str] | None, typer.Option(metavar="SIZE", help=HEADROOM)] = None,
    growth: Annotated[list[str] | None, typer.Option(metavar="SIZE", help=GROWTH)] = None,
    device: Annotated[list[str] | None, typer.Option(metavar="DEVICE", help=DEVICE)] = None,
    prices: Annotated[list[str] | None, typer.Option(metavar="TABLE", help=PRICES)] = None,
    plain: Annotated[bool, typer.Option("--plain", help=PLAIN)] = False,
    vmm: Annotated[bool, typer.Option("--vmm", help="Use virtual memory (default); with --plain, compare.")] = False,
    no_compact: Annotated[bool, typer.Option("--no-compact", help=NO_COMPACT)] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Move live data (default); with --no-compact, compare.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare side by side: several traces, or repeated options.")
    ] = False,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help=SAVE)] = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE)] = False,
    as_json: Annotated[bool, typer.Option("--json", help=JSON)] = False,
) -> None:
    """Replay recorded runs and check whether they fit under a cap.

    Several traces, or options given several times, are compared side by side.
    Exit code 3: it does not fit. Exit code 4: unknown, because the recorded run
    ended with a failed request.

    \b
    Examples:
      arena replay run.arena --cap 4GiB --save report.html
      arena replay run.arena --cap 4GiB --cap 6GiB
      arena replay --compare a.arena b.arena
    """
    given: dict[str, list[Any]] = {"cap": cap or [], "headroom": headroom or [], "growth": growth or []}
    given["device"] = [as_device(name) for name in device or ()]
    given["prices"] = list(prices or ())
    given["vmm"] = [True, False] if plain and vmm else [not plain]
    given["compact"] = [True, False] if compact and no_compact else [not no_compact]
    if compare or len(traces) > 1 or any(len(values) > 1 for values in given.values()):
        _compare.compare(run, traces, {name: values for name, values in given.items() if values}, save, force, as_json)
    settings: dict[str, Any] = {name: values[0] for name, values in given.items() if values}
    trace = traces[0]
    if save:
        check(save, overwrite=force, endings=REPORTS)
    console = Console(stderr=True, soft_wrap=True)
    read = read_trace(trace)
    done = run(read, settings, console)
    written = done.report.save(save, overwrite=force) if save else None
    if as_json:
        print(json.dumps({**facts(done), "report": str(written) if written else None}, indent=1))
    else:
        again = [str(trace), *(("--device", device[0]) if device else ()), *(("--prices", prices[0]) if prices else ())]
        again += ["--no-compact"] if no_compact else []
        show(done, read, written, again)
    raise typer.Exit(exit_code(done.fits))


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
        "ended_by": dataclasses.asdict(done.ended_by) if done.ended_by else None,
        "survived": dataclasses.asdict(done.survived),
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


def show(done: Replayed, trace: Trace, written: Path | None, again: list[str]) -> None:
    stats, size = done.stats, format_size
    console = Console(soft_wrap=True)
    cap = size(stats.cap)
    if done.fits:
        console.print(f"fits: {counted(done.events, 'event')} under a cap of {cap}")
    elif done.error is None:
        console.print(f"fits under a cap of {cap} as far as it was recorded; the rest is unknown")
    else:
        asked, largest = size(done.error.requested), size(done.error.largest)
        console.print(f"does not fit under a cap of {cap}: event {done.events - 1:,}, a request of {asked}, fails")
        console.print(f"{done.error.verdict}; the largest request that would have passed is {largest}")
        for line in by_moving(done.error):
            console.print(line)
    for line in about_failures(done.ended_by, done.survived, len(trace)):
        console.print(line)
    console.print(done.report.moment)
    for line in held(done):
        console.print(line)
    if done.report.timeline:
        for row in timeline(done.report.timeline):
            console.print(row)
    console.print(assumed(done.compact))
    console.print(f"peaks: {size(stats.peak_live)} live, {size(stats.peak_reserved)} reserved")
    calls = ((stats.driver_calls, "driver call"), (stats.maps, "map"), (stats.rebacked, "re-backing"))
    console.print(", ".join(counted(*one) for one in calls))
    if done.priced_ms is not None:
        console.print(f"{done.priced_ms:.1f} ms of driver time by the price table {done.prices}")
    if written:
        console.print(f"wrote {written}")
    program = str(trace.facts.get("program", ""))
    console.print(f"Next: {following(done, written, again, program)}")


def by_moving(error: OutOfMemoryError) -> Iterator[str]:
    """What moving live data would have changed, if anything."""
    if error.largest_with_moving > error.largest:
        yield f"that is without moving live data; with moving it is {format_size(error.largest_with_moving)}"
    if error.set_free_by_moving:
        yield f"moving would have freed {format_size(error.set_free_by_moving)}, and this request would have passed"


def following(done: Replayed, written: Path | None, again: list[str], program: str) -> str:
    if written:
        return next_after(written)
    if done.fits is None:
        return record_again(done.peak_reserved, program)
    if not done.fits:
        return arena_command("fit", again[0], *(["--no-compact"] if not done.compact else []))
    return arena_command("replay", *again, "--cap", exact_size(done.stats.peak_reserved), "--save", "report.html")


def held(done: Replayed) -> Iterator[str]:
    """The largest holders at that moment: lines if they were recorded, otherwise scopes, otherwise sizes."""
    report = done.report
    found = report.lines or report.scopes or sizes(done)
    live = report.account["live"]
    if found:
        yield f"{format_size(live)} was live:"
    for holder in found[:MOST_HELD]:
        share = f"{holder.bytes / live:.0%}"
        yield f"  {format_size(holder.bytes):>10} {share:>4}  {holder.name}, {counted(holder.blocks, 'block')}"
    rest = live - sum(holder.bytes for holder in found[:MOST_HELD])
    if found and rest:
        yield f"  {format_size(rest):>10} {rest / live:>4.0%}  others"


def sizes(done: Replayed) -> list[Holder]:
    """Live bytes by size, largest first."""
    name = "blocks of {} to {}"
    found = [
        Holder(name.format(format_size(size.low), format_size(size.high)), size.bytes, size.count)
        for size in done.report.live_sizes
        if size.count
    ]
    return sorted(found, key=lambda holder: -holder.bytes)
