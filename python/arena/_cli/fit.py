"""``arena fit``: how much memory a recorded program needs, which cards it fits on, and with which batches."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table

from .._analysis.fit.answer import CardFit, Fit
from .._analysis.fit.answer import fit as find_fit
from .._analysis.fit.caps import LARGEST, Progress
from .._util.arguments import as_device, is_number
from .._util.console import Console
from .._util.next_step import arena_command, exact_size, record_again
from .._util.sizes import format_size as size
from .._words.format import counted, format_range
from ..errors import UsageError
from .codes import EXIT_MISFIT, EXIT_UNFINISHED, EXIT_UNSURE
from .failures import about_failures
from .moving import NO_COMPACT, assumed
from .options import GROWTH, JSON, PLAIN, PRICES
from .reading import read_trace

__all__ = ["fit"]

SITES = 5  # shown at most
WIDTH = 80
WELL = 0.95  # the share of the bytes that should be found in all runs


def fit(
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE", help="A trace, or several of one program at different batches."),
    ],
    cap: Annotated[str | None, typer.Option(metavar="SIZE", help='Check against a limit: "4GiB".')] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help='Check against a card: "rtx4090", "24GiB", a device number, or "sim".'),
    ] = None,
    outside: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What everything else takes. Default: what is known of the card.")
    ] = None,
    batch_from: Annotated[str | None, typer.Option(metavar="BATCHES", help="The batch of each trace: 8,16.")] = None,
    batch_to: Annotated[str | None, typer.Option(metavar="BATCHES", help="Batches to predict: 32,64.")] = None,
    growth: Annotated[str | None, typer.Option(metavar="SIZE", help=GROWTH)] = None,
    plain: Annotated[bool, typer.Option("--plain", help=PLAIN)] = False,
    no_compact: Annotated[bool, typer.Option("--no-compact", help=NO_COMPACT)] = False,
    prices: Annotated[str | None, typer.Option(metavar="TABLE", help=PRICES)] = None,
    as_json: Annotated[bool, typer.Option("--json", help=JSON)] = False,
) -> None:
    """Find the smallest cap and the largest batch of a recorded run.

    Exit code 3: nothing fits the given cap or device. Exit code 4: that is not
    known, because the recorded run ended with a failed request, or because it
    depends on how much the CUDA context and kernels take of the device.

    \b
    Examples:
      arena fit run.arena --device 24GiB
      arena fit b8.arena b16.arena --batch-from 8,16 --batch-to 32,64
    """
    errors = Console(stderr=True, soft_wrap=True)
    before, after = numbers("--batch-from", batch_from), numbers("--batch-to", batch_to)
    read = [read_trace(path) for path in traces]
    with shown_progress(errors) as progress:
        found = find_fit(
            read if len(read) > 1 else read[0],
            cap=cap,
            device=None if device is None else as_device(device),
            outside=outside,
            batch_from=before,
            batch_to=after,
            growth=growth,
            vmm=not plain,
            compact=not no_compact,
            prices=prices,
            progress=progress,
        )
    if as_json:
        print(json.dumps(facts(found), indent=1))
    else:
        asked = Asked(
            traces=[str(path) for path in traces],
            program=str(read[0].facts.get("program", "")),
            growth=growth,
            plain=plain,
            no_compact=no_compact,
            prices=prices,
        )
        show(found, asked)
    raise typer.Exit(exit_of(found))


def exit_of(found: Fit) -> int:
    if found.fits is None and found.limit is not None and not found.ended_by:
        return EXIT_UNSURE
    return EXIT_MISFIT if found.fits is False else EXIT_UNFINISHED if found.ended_by else 0


class Asked(NamedTuple):
    """What the user typed, for the next command to suggest."""

    traces: list[str]
    program: str
    growth: str | None
    plain: bool
    no_compact: bool
    prices: str | None

    def options(self) -> list[str]:
        """The same options for another command."""
        given = [
            word for name in ("growth", "prices") if (value := getattr(self, name)) for word in (f"--{name}", value)
        ]
        return [*given, *(["--plain"] if self.plain else []), *(["--no-compact"] if self.no_compact else [])]

    def arena(self, cap: int) -> str:
        """An arena with these settings, in Python."""
        given = [f'cap="{exact_size(cap)}"', *([f"growth={self.growth!r}"] if self.growth else [])]
        given += [*(["vmm=False"] if self.plain else []), *(["compact=False"] if self.no_compact else [])]
        return f"arena.Arena({', '.join(given)})"


def numbers(name: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(is_number(part) for part in parts):
        raise UsageError(f"{name} {text}: write batch sizes with commas between them: 8,16")
    return [int(part) for part in parts]


@contextlib.contextmanager
def shown_progress(console: Console) -> Iterator[Progress | None]:
    """Show the current replay, if this is a terminal."""
    if not console.is_terminal:
        yield None
        return
    with console.status("reading") as status:
        yield lambda done, text: status.update(f"replay {done + 1}, {text}")


def facts(found: Fit) -> dict[str, Any]:
    return {"fits": found.fits, **asdict(found)}


def show(found: Fit, asked: Asked) -> None:
    console = Console(soft_wrap=True, width=WIDTH)
    which = f" of the run with batch {max(found.scaling.batches)}" if found.scaling else ""
    notes = [*about_failures(found.ended_by, found.survived, found.events)]
    console.say(*([*notes, ""] if notes else []))
    peak = f"{size(found.peak_live)} live at the peak{', if that request passes' if found.ended_by else ''}"
    console.print(f"{counted(found.events, 'event')}{which}, {peak}; {counted(found.replays, 'replay')}")
    console.say(assumed(found.compact), "")
    rows = [
        (found.smallest_cap, "the smallest cap that gets past it" if found.ended_by else "the smallest cap that works"),
        (found.comfortable_cap, "remapping is rare from here"),
        (found.uncapped, "reserved without a cap"),
    ]
    console.print(table(["", "× live", ""], [[size(cap), times(cap, found), text] for cap, text in rows]))
    for cap in found.exceptions:
        console.print(f"but {size(cap)} does not work, although less does: use more than that")
    console.say("", "what a cap costs: driver time in total, and in the second half of the run,")
    console.print(f"by the price table {found.prices}")
    console.print(points_table(found))
    console.say("", *cards(found))
    if found.scaling:
        show_batches(console, found)
    if found.limit is not None and not found.scaling:
        console.say("", verdict(found))
    console.say("", *following(found, asked))


def verdict(found: Fit) -> str:
    assert found.limit is not None
    least = "at least " if found.ended_by else ""
    word = {True: "fits", False: "does not fit", None: "may fit"}[found.fits]
    limit = format_range(found.limit, found.limit_at_most or found.limit)
    return f"{word} within {limit}: it needs {least}{size(found.smallest_cap)}"


def times(cap: int, found: Fit) -> str:
    return f"{cap / found.peak_live:.3f}"


def table(titles: list[str], rows: list[list[str]], *, left: int = -1) -> Table:
    """A table whose columns are right-aligned, except one."""
    made = Table(box=None, padding=(0, 1), show_header=any(titles))
    for index, title in enumerate(titles):
        made.add_column(title, justify="left" if index == left % len(titles) else "right", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    return made


def points_table(found: Fit) -> Table:
    longest = max(point.priced_ms for point in found.points) or 1
    rows = []
    for point in found.points:
        bar = "█" * round(16 * point.priced_ms / longest) if point.fits else "does not fit"
        cap = "none" if point.cap >= LARGEST else size(point.cap)
        ratio = "" if point.cap >= LARGEST else times(point.cap, found)
        figures = [f"{point.priced_ms:.1f}", f"{point.later_ms:.1f}", f"{point.maps:,}", f"{point.rebacked:,}"]
        rows.append([cap, ratio, *figures, bar])
    return table(["cap", "× live", "ms", "2nd half", "maps", "re-backed", ""], rows)


def cards(found: Fit) -> Iterator[str]:
    fitting = [card for card in found.cards if card.fits]
    perhaps = [card for card in found.cards if card.fits is None]
    if not fitting:
        yield f"no card with up to {size(found.cards[-1].memory)} is {'surely ' if perhaps else ''}large enough"
        return
    least = fitting[0]
    which = "cards that get past it" if found.ended_by else "cards that are large enough"
    yield f"{which}, with {size(least.memory - least.limit)} for everything else:"
    smaller = f"; perhaps {named(perhaps[0])}" if perhaps and perhaps[0].memory < least.memory else ""
    yield f"  {named(least)} and larger{smaller}"
    roomy = next((card for card in fitting if card.comfortable), None)
    if roomy is not None and roomy != least:
        yield f"  with remapping rare: {named(roomy)} and larger"


def named(card: CardFit) -> str:
    return f"{card.card} ({size(card.memory)})"


def show_batches(console: Console, found: Fit) -> None:
    scaling = found.scaling
    assert scaling is not None
    first, *more = alignment(found)
    console.say("", f"batches {', '.join(map(str, sorted(scaling.batches)))}: {first}", *more)
    sites = [[f"{site.per_item:,}", f"{site.fixed:,}", site.where] for site in scaling.sites[:SITES]]
    console.print(table(["bytes per item", "fixed", "at the peak, fastest growing first"], sites))
    console.say("", *quality(found))
    if found.predictions:
        rows = []
        for p in found.predictions:
            card = next((card for card in found.cards if p.smallest_cap + p.error <= card.limit), None)
            words = {None: "", True: "fits", False: "does not fit"}[p.fits] + (
                "" if p.sure is not False else ", perhaps"
            )
            on = named(card) if card else "none"
            rows.append([str(p.batch), size(p.peak_live), size(p.smallest_cap), f"± {size(p.error)}", on, words])
        console.print(table(["batch", "peak live", "smallest cap", "error", "for a card like", ""], rows))
    if found.limit is None:
        return
    if found.largest is None:
        console.print(f"within {size(found.limit)}: any batch fits, because nothing grows with it")
    elif found.largest.batch == 0:
        console.print(f"within {size(found.limit)}: no batch fits")
    else:
        best = found.largest
        most = "any" if best.at_most is None else str(best.at_most)
        between = f"{best.at_least} to {most} within the error"
        console.print(f"within {size(found.limit)}: the largest batch is {best.batch} ({between})")


def alignment(found: Fit) -> list[str]:
    assert found.scaling is not None
    how = "by line" if found.scaling.by_line else "by their order"
    text = f"{found.scaling.aligned:.0%} of the bytes are in all runs, {how}"
    if found.scaling.aligned < WELL and not found.scaling.by_line:
        return [f"{text};", "record with ARENA_LINES=1 to compare them by line"]
    return [text]


def quality(found: Fit) -> list[str]:
    assert found.scaling is not None
    if not found.scaling.left_out:
        return [
            "two batches always fit a straight line: the error covers only rounding and what was not found in both;",
            "a third recording would show whether memory grows linearly",
        ]
    worst, miss = max(found.scaling.left_out.items(), key=lambda item: abs(item[1]))
    return [f"worst prediction from the other batches: batch {worst} is off by {abs(miss):.2%}"]


def following(found: Fit, asked: Asked) -> list[str]:
    """What to do next."""
    if found.scaling and found.largest and found.largest.batch and found.limit is not None:
        least, most = max(1, found.largest.at_least), found.largest.at_most or 4 * found.largest.batch
        pool = asked.arena(found.limit)
        return ["Next: try it for real, in Python:", f"  arena.largest_batch(function, {least}, {most}, pool={pool})"]
    return [f"Next: {next_command(found, asked)}"]


def next_command(found: Fit, asked: Asked) -> str:
    if found.scaling:
        batches = ",".join(map(str, found.scaling.batches))
        return arena_command("fit", *asked.traces, "--batch-from", batches, "--device", "24GiB", *asked.options())
    if found.ended_by:
        return record_again(found.smallest_cap, asked.program)
    cap = exact_size(found.comfortable_cap)
    return arena_command("replay", asked.traces[0], "--cap", cap, *asked.options(), "--save", "report.html")
