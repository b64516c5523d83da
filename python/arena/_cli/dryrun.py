"""``arena dryrun``: a program on a simulated GPU, and whether its memory fits."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .._cards import Card, find_card
from .._dryrun.assume import FORMS, RANGE, Assumptions
from .._dryrun.batches import Found, OtherEndError, Span, check, find_batch, steps, with_batch
from .._dryrun.compare import Row, compare
from .._dryrun.ends import Stop
from .._dryrun.environment import Device
from .._dryrun.outputs import Outputs
from .._dryrun.qualified import Unknown, suspect
from .._dryrun.run import Outcome, Plan
from .._dryrun.table import Table as PeakTable
from .._dryrun.table_words import VIEWS
from .._dryrun.trials import settle, tried_with_arena
from .._dryrun.verdict import Verdict, in_words, limits_of
from .._frameworks import parse_keys
from .._pool.settings import is_simulated, simulated_size
from .._run.program import check_script
from .._util.console import Console
from .._util.next_step import arena_command, next_after
from .._util.sizes import format_size as size
from .._words.format import counted, format_range
from ..errors import UsageError
from .codes import EXIT_MISFIT, EXIT_UNSURE
from .options import ONLY
from .program import CONTEXT, Command, checked_depth, variables_of
from .say import say

__all__ = ["CONTEXT", "Command", "dryrun"]

CARD = "rtx4090"  # if none is named
VALUES = ("control", "none", "all")
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
    cap: Annotated[str | None, typer.Option(help='Use the arena, with that cap: "4GiB", "80%".')] = None,
    allocator: Annotated[
        str | None,
        typer.Option(metavar="native|arena", help="Whose memory: the framework's own (default), or the arena's."),
    ] = None,
    values: Annotated[
        str, typer.Option(metavar="control|none|all", help="Which values are computed: those that control flow needs.")
    ] = "control",
    assume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT=VALUE",
            help="What unknown values are: nonzero=all, half, none or range; boxes.py:258=1000. May be repeated.",
        ),
    ] = None,
    no_second_run: Annotated[
        bool, typer.Option("--no-second-run", help="Run it once, also where a second run could settle the verdict.")
    ] = False,
    stop_after: Annotated[
        str | None, typer.Option("--stop-after", metavar="5m|200steps", help="End it then, with a verdict so far.")
    ] = None,
    compare_both: Annotated[bool, typer.Option("--compare", help="Run it under both allocators.")] = False,
    span: Annotated[
        str | None, typer.Option("--find-batch", metavar="LOW:HIGH", help="Find the largest {} that fits.")
    ] = None,
    by: Annotated[
        str, typer.Option("--by", metavar="line|module|kind", help="How the memory at the peak is grouped.")
    ] = VIEWS[0],
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
    of arena come before the program. The exit code is the program's, or 4 if the
    program ended well and the verdict is unsure; with --find-batch 3 if not even
    the smallest batch fits.

    \b
    Examples:
      arena dryrun --card rtx4090 train.py --epochs 1
      arena dryrun --card t4 --compare train.py
      arena dryrun --find-batch 1:512 train.py --batch {}
    """
    given = arguments or []
    if not module:
        check_script(program, given, "dryrun")
    spread, assumptions = assumed(assume or [])
    outputs = Outputs(report=report, record=record, force=force)
    depth = checked_depth(lines)
    plan = Plan(
        device=chosen_device(card, device),
        program=program,
        arguments=tuple(given),
        is_module=module,
        allocator=chosen_allocator(allocator, cap, only),
        values=checked_values(values),
        assume=assumptions,
        spread=spread,
        stop=None if stop_after is None else Stop.parse(stop_after),
        only=None if only is None else parse_keys(only),
        settings={**variables_of({"cap": cap}), "ARENA_LINES": str(depth)},
        history=record is not None or report is not None,
        report=outputs.report,
        record=outputs.record,
        force=force,
    )
    console = Console(stderr=True, soft_wrap=True)
    ask = Asked(plan, outputs, compare_both, second_run=not no_second_run, by=checked_view(by))
    done = run_once(ask, quiet=False) if span is None else search(ask, Span.parse(span), console)
    done.say(console, as_json)
    raise typer.Exit(done.exit)


def chosen_allocator(allocator: str | None, cap: str | None, only: str | None) -> str:
    """The framework's own, unless the user says something about the arena."""
    if allocator not in (None, "arena", "native"):
        raise UsageError(f"--allocator {allocator} is not accepted; write arena or native")
    if allocator == "native" and only is not None:
        raise UsageError("--only names frameworks that get arena, and --allocator native gives it to none; omit one")
    return allocator or ("native" if cap is None and only is None else "arena")


def checked_values(values: str) -> str:
    if values not in VALUES:
        raise UsageError(f"--values {values} is not accepted; write {', '.join(VALUES[:-1])} or {VALUES[-1]}")
    return values


def checked_view(by: str) -> str:
    if by not in VIEWS:
        raise UsageError(f"--by {by} is not accepted; write {', '.join(VIEWS[:-1])} or {VIEWS[-1]}")
    return by


def assumed(items: list[str]) -> tuple[bool, Assumptions]:
    """Whether both ends of ``nonzero`` are tried, and what else is assumed."""
    internal = [item for item in items if item.strip().startswith(("reads=", "bools=", "keep="))]
    if internal:
        raise UsageError(f"--assume {internal[0]} is not accepted; {FORMS}")
    spread = RANGE in items
    if spread and any(item.startswith("nonzero=") and item != RANGE for item in items):
        raise UsageError(f"--assume {RANGE} tries nonzero=all and nonzero=none; omit the other assumption of nonzero")
    return spread, Assumptions.of(item for item in items if item != RANGE)


@dataclass(frozen=True)
class Asked:
    """What the user wants done with a program."""

    plan: Plan
    outputs: Outputs
    compare_both: bool
    second_run: bool
    by: str
    """How the table of the peak is grouped."""


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
        *,
        by: str = VIEWS[0],
    ) -> None:
        self.by = by
        self.verdict, self.written, self.rows, self.found, self.span = verdict, written, rows, found, span

    @property
    def exit(self) -> int:
        if self.found is not None and self.found.batch is not None:
            return 0
        if self.found is not None:
            return EXIT_UNSURE if self.verdict.word == "unsure" else EXIT_MISFIT
        code = self.verdict.outcome.exit
        if code == 0 and self.verdict.word == "unsure":
            return EXIT_UNSURE
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
        for text in self.limits if self.verdict.peak is not None else ():
            console.print(f"Note: {text}")
        console.print(f"Next: {self.next()}")

    @property
    def limits(self) -> tuple[str, ...]:
        return limits_of(self.verdict.outcome.plan.values)

    def words(self) -> Iterator[str]:
        if self.found is not None and self.span is not None:
            yield from batch_in_words(self.found, self.span)
        yield from in_words(self.verdict, self.by)
        yield from about_frameworks(self.verdict.outcome)
        yield from about_arena(self.verdict)

    def about_files(self) -> Iterator[str]:
        for path, what in self.written["files"].items():
            yield f"wrote {path}: {what}"
        for problem in self.written["problems"]:
            yield f"arena: {problem}"

    def facts(self) -> dict[str, Any]:
        verdict = self.verdict
        plan = verdict.outcome.plan
        return {
            "verdict": verdict.word,
            "fits": verdict.fits,
            "checks": list(verdict.checks),
            "because": verdict.because or None,
            "unknown": [unknown_facts(one) for one in verdict.unknown],
            "range": [verdict.low, verdict.high] if verdict.low is not None else None,
            "on_top": [verdict.top.low, verdict.top.high],
            "workspaces": [dataclasses.asdict(one) for one in verdict.outcome.workspaces],
            "until": (verdict.outcome.facts or {}).get("until") or None,
            "with_arena": verdict.with_arena,
            "exit": self.exit,
            "card": plan.device.card.key if plan.device.card else None,
            "memory": verdict.memory,
            "context": verdict.context,
            "allocator": plan.allocator,
            "values": plan.values,
            "peak": verdict.peak,
            "accounts": [dataclasses.asdict(account) for account in verdict.accounts],
            "table": table_facts(verdict.table) if verdict.table is not None else None,
            "failure": verdict.failure,
            "cards": {card.key: word for card, word in verdict.cards()},
            "compare": [dataclasses.asdict(row) for row in self.rows] if self.rows is not None else None,
            "batch": batch_facts(self.found) if self.found is not None else None,
            **self.written,
            "limits": self.limits,
            "run": {key: value for key, value in (verdict.outcome.facts or {}).items() if key != "ledger"} or None,
        }

    def next(self) -> str:
        return next_step(self)


def table_facts(table: PeakTable) -> dict[str, Any]:
    """The largest first. The sum of all ``bytes`` is ``total``."""
    return {
        "moment": table.moment,
        "rows": [dataclasses.asdict(row) for row in sorted(table.rows, key=lambda row: -row.bytes)],
        "rest": [dataclasses.asdict(one) for one in table.rest],
        "live": table.live,
        "total": table.total,
    }


def unknown_facts(one: Unknown) -> dict[str, Any]:
    names = ("line", "what", "count", "kind", "dtype", "sized", "assumed", "given")
    return {name: getattr(one, name) for name in names}


def run_once(ask: Asked, *, quiet: bool) -> Done:
    verdict = settle(ask.plan, quiet=quiet, again=ask.second_run)
    if ask.second_run:
        verdict = tried_with_arena(verdict)
    written = ask.outputs.write(verdict.outcome)
    return Done(verdict, written, compare(ask.plan, verdict) if ask.compare_both else None, by=ask.by)


def search(ask: Asked, span: Span, console: Console) -> Done:
    check(ask.plan)
    try:
        with shown_progress(console, steps(span)) as progress:
            found = find_batch(ask.plan, span, progress, again=ask.second_run)
    except KeyboardInterrupt:
        say("arena: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except OtherEndError as error:
        for line in error.output.splitlines():
            say(f"  {line}", err=True)
        raise
    # Once more, for what costs more than a yes or a no: the lines, the report, the recording, the other allocator.
    batch = found.batch if found.batch is not None else span.low
    done = run_once(dataclasses.replace(ask, plan=with_batch(ask.plan, batch)), quiet=True)
    return Done(done.verdict, done.written, done.rows, found, span, by=ask.by)


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
    needed = verdict.ran and verdict.low is not None and verdict.high is not None
    peak = f", needs {format_range(verdict.low or 0, verdict.high or 0)}" if needed else ""
    return f"batch {batch}: {verdict.word}{peak}"


def batch_in_words(found: Found, span: Span) -> Iterator[str]:
    if found.batch is None:
        sure = "surely " if found.best.word == "unsure" else ""
        yield f"arena: not even batch {span.low} {sure}fits"
    elif found.batch == span.high:
        yield f"arena: batch {found.batch} fits, the largest that was asked about"
    else:
        yield f"arena: the largest batch that fits is {found.batch}; {len(found.tried)} were tried"


def batch_facts(found: Found) -> dict[str, Any]:
    tried = {
        str(batch): {"verdict": one.word, "fits": one.fits, "peak": one.peak}
        for batch, one in sorted(found.tried.items())
    }
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
    stop = outcome.plan.stop
    if stop is not None and stop.steps is not None and not facts.get("until") and facts.get("steps", 0) < stop.steps:
        seen = counted(facts.get("steps", 0), "step")
        yield f"arena: --stop-after {stop.text} did not end the program: PyTorch's optimizers took {seen}"
    if facts.get("error") and not facts.get("ended_by"):
        yield f"arena: the program ended with {textwrap.shorten(facts['error'], LONGEST, placeholder=' ...')}"


def about_arena(verdict: Verdict) -> Iterator[str]:
    """What the arena would change."""
    how = {"PyTorch": "`arena.torch.use()`", "CuPy": "`cupy.cuda.set_allocator(arena.malloc)`"}
    call = how.get((verdict.failure or {}).get("framework", ""), "")
    if verdict.with_arena and call:
        yield f"arena: fits with the arena: {call}, one line; see it with --allocator arena"
    elif verdict.with_arena is False:
        yield "arena: with the arena it does not fit either (--allocator arena)"


def comparison(rows: list[Row]) -> Table:
    table = Table(box=None, padding=(0, 1), show_header=True)
    for title in ("allocator", "live", "reserved", "in use on the card", ""):
        table.add_column(title, justify="left" if title in ("allocator", "") else "right", no_wrap=True)
    for row in rows:
        figures = [size(value) if value is not None else "?" for value in (row.live, row.reserved, row.peak)]
        word = row.word or "not known"
        table.add_row(row.who, *figures, word)
    return table


def next_step(done: Done) -> str:
    verdict, plan = done.verdict, done.verdict.outcome.plan
    if explained := (verdict.outcome.facts or {}).get("next"):
        return str(explained)
    if done.found is not None and done.span is not None and done.found.batch == done.span.high:
        return f"larger ones: --find-batch {done.span.high}:{4 * done.span.high}"
    if verdict.with_arena:
        return again(plan, *device_options(plan), "--allocator", "arena")
    if verdict.fits is False:
        larger = (card.key for card, word in verdict.cards() if word != "no" and card.memory > verdict.memory)
        if (key := next(larger, None)) is not None:
            return again(plan, "--card", key)
        return "a smaller batch: --find-batch 1:64, with {} in its place among the arguments"
    if (cause := suspected(verdict)) is not None:
        return again(plan, *device_options(plan), "--assume", f"{cause.place}=1")
    if verdict.word is None and (verdict.outcome.facts or {}).get("error"):
        if plan.device.card is None:  # a device without the properties of a real one, such as its shared memory
            return again(plan, "--card", CARD)
        return "see the program's own error above: until it runs to its end, its memory is not known"
    files = done.written["files"]
    if recording := next((path for path in files if path.endswith(".arena")), None):
        return arena_command("fit", recording)
    if files:
        return next_after(Path(next(iter(files))))
    return again(plan, *device_options(plan), "--report", "report.html")


def device_options(plan: Plan) -> tuple[str, str]:
    return ("--card", plan.device.card.key) if plan.device.card else ("--device", plan.device.label)


def suspected(verdict: Verdict) -> Unknown | None:
    """The value that may have caused the error that ended the program."""
    if verdict.word != "unsure" or verdict.ran is not None:
        return None
    return suspect(verdict.unknown, (verdict.outcome.facts or {}).get("error_line", ""))


def again(plan: Plan, *options: str) -> str:
    """The same program with other options."""
    return arena_command("dryrun", *options, *(["-m"] if plan.is_module else []), plan.program, *plan.arguments)
