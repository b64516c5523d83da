"""``arena dryrun``: a program on a simulated GPU, and whether its memory fits."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .._cards import Card, find_card
from .._dryrun.batches import Found, OtherEndError, Span, check, find_batch, steps, with_batch
from .._dryrun.compare import Row, compare
from .._dryrun.environment import Device
from .._dryrun.outputs import Outputs
from .._dryrun.run import Outcome, Plan, run_dry
from .._dryrun.verdict import LIMITS, Verdict, in_words, judge
from .._frameworks import parse_keys
from .._pool.settings import is_simulated, simulated_size
from .._run.program import check_script
from .._util.next_step import arena_command, next_after
from .._util.sizes import format_size as size
from ..errors import UsageError
from .codes import EXIT_MISFIT
from .options import ONLY
from .program import CONTEXT, Command, checked_depth, variables_of

__all__ = ["CONTEXT", "Command", "dryrun"]

CARD = "rtx4090"  # if none is named
INTERRUPTED = 130
LONGEST = 200  # of an error in the summary: the whole of it is above


def dryrun(
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="A script, a folder or an archive; with -m a module.")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGUMENTS", help="What it is given.")] = None,
    module: Annotated[bool, typer.Option("-m", help="PROGRAM is the name of a module.")] = False,
    card: Annotated[
        str | None, typer.Option(help=f"One of arena cards, or the file of your own profile. Default: {CARD}.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help='A device of that size: "sim:24GiB"; with --card, its size.')
    ] = None,
    cap: Annotated[str | None, typer.Option(help='The cap of the arena: "4GiB", "80%".')] = None,
    allocator: Annotated[
        str, typer.Option(metavar="arena|native", help="Whose memory: the arena's, or the framework's own.")
    ] = "arena",
    compare_both: Annotated[bool, typer.Option("--compare", help="Run it under both allocators.")] = False,
    span: Annotated[
        str | None, typer.Option("--find-batch", metavar="LOW:HIGH", help="Find the largest {} that fits.")
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", metavar="[=N]", help="How many lines of each call stack to keep. 0: none.")
    ] = 1,
    report: Annotated[Path | None, typer.Option(help="Write the report there: .html, .json or .txt.")] = None,
    record: Annotated[Path | None, typer.Option(help="Record the run there, for arena fit and replay.")] = None,
    only: Annotated[str | None, typer.Option(metavar="NAMES", help=ONLY)] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The last line of standard error is for machines.")] = False,
) -> None:
    """Run a program on a simulated GPU, and say whether its memory fits.

    Every allocation, copy, stream and event is real; kernels are skipped. Options
    of arena come before the program. The exit code is the program's; with
    --find-batch 3 if not even the smallest batch fits.

    \b
    Examples:
      arena dryrun --card rtx4090 train.py --epochs 1
      arena dryrun --card t4 --compare train.py
      arena dryrun --find-batch 1:512 train.py --batch {}
    """
    given = arguments or []
    if not module:
        check_script(program, given, "dryrun")
    if allocator not in ("arena", "native"):
        raise UsageError(f"--allocator {allocator} is not accepted; write arena or native")
    if allocator == "native" and only is not None:
        raise UsageError("--only names frameworks that get arena, and --allocator native gives it to none; omit one")
    outputs = Outputs(report=report, record=record, force=force)
    depth = checked_depth(lines)
    plan = Plan(
        device=chosen_device(card, device),
        program=program,
        arguments=tuple(given),
        is_module=module,
        allocator=allocator,
        only=None if only is None else parse_keys(only),
        settings={**variables_of({"cap": cap}), "ARENA_LINES": str(depth)},
        history=depth > 0 or record is not None or report is not None or compare_both,
        report=outputs.report,
        record=outputs.record,
        force=force,
    )
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if span is None:
        done = run_once(plan, outputs, compare_both, quiet=False)
    else:
        done = search(plan, Span.parse(span), outputs, compare_both, console)
    done.say(console, as_json)
    raise typer.Exit(done.exit)


def chosen_device(card: str | None, device: str | None) -> Device:
    memory = None
    if device is not None:
        if not is_simulated(device):
            raise UsageError(f'--device {device} is not accepted: a dry run is always simulated; write "sim:24GiB"')
        memory = simulated_size(device)
    found: Card | None = find_card(card or CARD) if card is not None or memory is None else None
    return Device(found, memory)


class Done:
    """All that is known in the end."""

    def __init__(
        self,
        verdict: Verdict,
        written: dict[str, Any],
        rows: list[Row] | None = None,
        found: Found | None = None,
        span: Span | None = None,
    ) -> None:
        self.verdict, self.written, self.rows, self.found, self.span = verdict, written, rows, found, span

    @property
    def exit(self) -> int:
        if self.found is not None:
            return 0 if self.found.batch is not None else EXIT_MISFIT
        code = self.verdict.outcome.exit
        return 128 - code if code < 0 else code  # as a shell says it

    def say(self, console: Console, as_json: bool) -> None:
        if as_json:
            console.print(json.dumps(self.facts()), soft_wrap=True)
            return
        for line in self.words():
            console.print(line)
        if self.rows:
            console.print(comparison(self.rows))
        for line in self.about_files():
            console.print(line)
        for text in LIMITS if self.verdict.peak is not None else ():
            console.print(f"Note: {text}")
        console.print(f"Next: {self.next()}")

    def words(self) -> Iterator[str]:
        if self.found is not None and self.span is not None:
            yield from batch_in_words(self.found, self.span)
        yield from in_words(self.verdict)
        yield from about_frameworks(self.verdict.outcome)

    def about_files(self) -> Iterator[str]:
        for path, what in self.written["files"].items():
            yield f"wrote {path}: {what}"
        for problem in self.written["problems"]:
            yield f"arena: {problem}"

    def facts(self) -> dict[str, Any]:
        verdict = self.verdict
        plan = verdict.outcome.plan
        return {
            "fits": verdict.fits,
            "exit": self.exit,
            "card": plan.device.card.key if plan.device.card else None,
            "memory": verdict.memory,
            "context": verdict.context,
            "allocator": plan.allocator,
            "peak": verdict.peak,
            "accounts": [dataclasses.asdict(account) for account in verdict.accounts],
            "moment": verdict.moment,
            "holders": [{"line": one.name, "bytes": one.bytes} for one in verdict.holders],
            "failure": verdict.failure,
            "cards": {card.key: word for card, word in verdict.cards()},
            "compare": [dataclasses.asdict(row) for row in self.rows] if self.rows is not None else None,
            "batch": batch_facts(self.found) if self.found is not None else None,
            **self.written,
            "limits": LIMITS,
            "run": verdict.outcome.facts,
        }

    def next(self) -> str:
        return next_step(self)


def run_once(plan: Plan, outputs: Outputs, compare_both: bool, *, quiet: bool) -> Done:
    outcome = run_dry(plan, quiet=quiet)
    verdict = judge(outcome)
    written = outputs.write(outcome)
    return Done(verdict, written, compare(plan, verdict) if compare_both else None)


def search(plan: Plan, span: Span, outputs: Outputs, compare_both: bool, console: Console) -> Done:
    check(plan)
    try:
        with shown_progress(console, steps(span)) as progress:
            found = find_batch(plan, span, progress)
    except KeyboardInterrupt:
        typer.echo("arena: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except OtherEndError as error:
        for line in error.output.splitlines():
            typer.echo(f"  {line}", err=True)
        raise
    # Once more, for what costs more than a yes or a no: the lines, the report, the recording, the other allocator.
    batch = found.batch if found.batch is not None else span.low
    done = run_once(with_batch(plan, batch), outputs, compare_both, quiet=True)
    return Done(done.verdict, done.written, done.rows, found, span)


@contextlib.contextmanager
def shown_progress(console: Console, total: int) -> Iterator[Callable[[int, Verdict | None], None]]:
    """A bar on a terminal, a line for each batch elsewhere."""
    if not console.is_terminal:
        yield lambda batch, verdict: console.print(trial_in_words(batch, verdict)) if verdict else None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=total)

        def show(batch: int, verdict: Verdict | None) -> None:
            if verdict is None:
                bar.update(task, description=f"batch {batch}")
            else:
                bar.advance(task)
                bar.console.print(trial_in_words(batch, verdict))

        yield show


def trial_in_words(batch: int, verdict: Verdict) -> str:
    peak = f", at most {size(verdict.peak)} in use" if verdict.peak is not None and verdict.fits else ""
    return f"batch {batch}: {'fits' if verdict.fits else 'does not fit'}{peak}"


def batch_in_words(found: Found, span: Span) -> Iterator[str]:
    if found.batch is None:
        yield f"arena: not even batch {span.low} fits"
    elif found.batch == span.high:
        yield f"arena: batch {found.batch} fits, the largest that was asked about"
    else:
        yield f"arena: the largest batch that fits is {found.batch}; {len(found.tried)} were tried"


def batch_facts(found: Found) -> dict[str, Any]:
    tried = {str(batch): {"fits": one.fits, "peak": one.peak} for batch, one in sorted(found.tried.items())}
    return {"largest": found.batch, "tried": tried}


def about_frameworks(outcome: Outcome) -> Iterator[str]:
    """What the user may take for granted and is not so."""
    facts = outcome.facts or {}
    torch = facts.get("torch")
    if torch and torch["allocator"] == "its own" and outcome.plan.allocator == "arena":
        yield f"arena: PyTorch used its own allocator: {torch['remark']}"
    if torch and torch["allocator"] == "another":
        yield f"arena: the program gave PyTorch an allocator of its own ({torch['remark']})"
    if facts.get("cupy") == "another" and outcome.plan.allocator == "arena":
        yield "arena: the program gave CuPy another allocator"
    if outcome.problem:
        yield f"arena: no lines are known: {outcome.problem}"
    if facts.get("error") and not facts.get("ended_by"):
        yield f"arena: the program ended with {textwrap.shorten(facts['error'], LONGEST, placeholder=' ...')}"


def comparison(rows: list[Row]) -> Table:
    table = Table(box=None, padding=(0, 1), show_header=True)
    for title in ("allocator", "live", "reserved", "in use on the card", ""):
        table.add_column(title, justify="left" if title in ("allocator", "") else "right", no_wrap=True)
    for row in rows:
        figures = [size(value) if value is not None else "?" for value in (row.live, row.reserved, row.peak)]
        word = {True: "fits", False: "does not fit", None: "not known"}[row.fits]
        table.add_row(row.who, *figures, word)
    return table


def next_step(done: Done) -> str:
    verdict, plan = done.verdict, done.verdict.outcome.plan
    if explained := (verdict.outcome.facts or {}).get("next"):
        return str(explained)
    if done.found is not None and done.span is not None and done.found.batch == done.span.high:
        return f"larger ones: --find-batch {done.span.high}:{4 * done.span.high}"
    if verdict.fits is False:
        larger = (card.key for card, word in verdict.cards() if word != "no" and card.memory > verdict.memory)
        if (key := next(larger, None)) is not None:
            return again(plan, "--card", key)
        return "a smaller batch: --find-batch 1:64, with {} in its place among the arguments"
    if verdict.fits is None and (verdict.outcome.facts or {}).get("error"):
        if plan.device.card is None:  # a device without the properties of a real one, such as its shared memory
            return again(plan, "--card", CARD)
        return "see the program's own error above: until it runs to its end, its memory is not known"
    files = done.written["files"]
    if recording := next((path for path in files if path.endswith(".arena")), None):
        return arena_command("fit", recording)
    if files:
        return next_after(Path(next(iter(files))))
    card = ("--card", plan.device.card.key) if plan.device.card else ("--device", plan.device.label)
    return again(plan, *card, "--report", "report.html")


def again(plan: Plan, *options: str) -> str:
    """The same program with other options."""
    return arena_command("dryrun", *options, *(["-m"] if plan.is_module else []), plan.program, *plan.arguments)
